import cotswold.api.connecting as connecting
from cotswold.batch.core.chunk_ledger import Ledger as Ledger
from cotswold.batch.core.coordinator import Coordinator as Coordinator
from cotswold.batch.core.permutation import Dealing as Dealing
from cotswold.batch.core.permutation import Permutation as Permutation
from cotswold.batch.core.requests import Account as Account
from cotswold.batch.core.requests import Counted as Counted
from cotswold.batch.core.requests import Event as Event
from cotswold.batch.core.requests import Request as Request
from cotswold.batch.core.requests import Trouble as Trouble
from cotswold.batch.core.rounds import RoundDone as RoundDone
from cotswold.batch.core.settings import Rules as Rules
from cotswold.batch.core.tasks import Sums as Sums
from cotswold.batch.core.worker import Worker as Worker
from cotswold.shards.core.sample_ledger import Samples as Samples
from cotswold.shards.core.shard_server import Arithmetic as Arithmetic
from cotswold.shards.core.shard_server import Server as Server

from .admission import Pass as Pass
from .admission import UpdateArithmetic as UpdateArithmetic
from .asynchronous import Asynchronous as Asynchronous
from .asynchronous import Room as Room
from .dispatch import Dispatch as Dispatch
from .dispatching import Dispatcher as Dispatcher
from .freezing import Frozen as Frozen
from .numbering import Part as Part
from .replica import Pace as Pace
from .replica import Replica as Replica
from .replica import StepTask as StepTask
from .staleness import Staleness as Staleness
from .updating import Updates as Updates

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
