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
from cotswold.paramserver.core.admission import Pass as Pass
from cotswold.paramserver.core.admission import UpdateArithmetic as UpdateArithmetic
from cotswold.paramserver.core.dispatcher import Dispatcher as Dispatcher
from cotswold.paramserver.core.dispatcher_settings import Dispatch as Dispatch
from cotswold.paramserver.core.frozen_state import Frozen as Frozen
from cotswold.paramserver.core.replica import Pace as Pace
from cotswold.paramserver.core.replica import Replica as Replica
from cotswold.paramserver.core.replica import StepTask as StepTask
from cotswold.paramserver.core.settings import Asynchronous as Asynchronous
from cotswold.paramserver.core.settings import Room as Room
from cotswold.paramserver.core.staleness import Staleness as Staleness
from cotswold.paramserver.core.update_sequence import Part as Part
from cotswold.paramserver.core.update_server import Updates as Updates
from cotswold.shards.core.sample_ledger import Samples as Samples
from cotswold.shards.core.shard_server import Arithmetic as Arithmetic
from cotswold.shards.core.shard_server import Server as Server

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
