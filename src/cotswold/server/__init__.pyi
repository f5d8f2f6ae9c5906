import cotswold.api.connecting as connecting
from cotswold.shards.core.sample_ledger import Samples as Samples
from cotswold.shards.core.shard_server import Arithmetic as Arithmetic
from cotswold.shards.core.shard_server import Server as Server

from .admission import Pass as Pass
from .admission import UpdateArithmetic as UpdateArithmetic
from .asked import Account as Account
from .asked import Counted as Counted
from .asked import Event as Event
from .asked import Request as Request
from .asked import Trouble as Trouble
from .asynchronous import Asynchronous as Asynchronous
from .asynchronous import Room as Room
from .coordinator import Coordinator as Coordinator
from .dealing import Dealing as Dealing
from .dealing import Permutation as Permutation
from .dispatch import Dispatch as Dispatch
from .dispatching import Dispatcher as Dispatcher
from .freezing import Frozen as Frozen
from .numbering import Part as Part
from .portions import Ledger as Ledger
from .replica import Pace as Pace
from .replica import Replica as Replica
from .replica import StepTask as StepTask
from .rounds import RoundDone as RoundDone
from .rules import Rules as Rules
from .staleness import Staleness as Staleness
from .tasks import Sums as Sums
from .updating import Updates as Updates
from .worker import Worker as Worker

connect = connecting.connect

__all__ = [
    "Account",
    "Arithmetic",
    "Asynchronous",
    "Coordinator",
    "Counted",
    "Dealing",
    "Dispatch",
    "Dispatcher",
    "Event",
    "Frozen",
    "Ledger",
    "Pace",
    "Part",
    "Pass",
    "Permutation",
    "Replica",
    "Request",
    "Room",
    "RoundDone",
    "Rules",
    "Samples",
    "Server",
    "Staleness",
    "StepTask",
    "Sums",
    "Trouble",
    "UpdateArithmetic",
    "Updates",
    "Worker",
]
