from .asked import Account as Account
from .asked import Counted as Counted
from .asked import Event as Event
from .asked import Request as Request
from .asked import Trouble as Trouble
from .coordinator import Coordinator as Coordinator
from .dealing import Dealing as Dealing
from .dealing import Permutation as Permutation
from .portions import Ledger as Ledger
from .rounds import RoundDone as RoundDone
from .rules import Rules as Rules
from .shard import Arithmetic as Arithmetic
from .shard import Server as Server
from .tasks import Sums as Sums
from .worker import Worker as Worker

__all__ = [
    "Account",
    "Arithmetic",
    "Coordinator",
    "Counted",
    "Dealing",
    "Event",
    "Ledger",
    "Permutation",
    "Request",
    "RoundDone",
    "Rules",
    "Server",
    "Sums",
    "Trouble",
    "Worker",
]
