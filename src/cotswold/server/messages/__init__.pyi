from .every import COORDINATOR as COORDINATOR
from .every import MESSAGES as MESSAGES
from .every import PARTS as PARTS
from .every import FromServer as FromServer
from .every import FromWorker as FromWorker
from .every import Message as Message
from .every import Send as Send
from .every import ToServer as ToServer
from .every import ToWorker as ToWorker
from .of_rounds import Accept as Accept
from .of_rounds import Answer as Answer
from .of_rounds import Round as Round
from .of_rounds import Write as Write
from .of_rounds import Written as Written
from .of_vectors import Kept as Kept
from .of_vectors import Pull as Pull
from .of_vectors import Pulled as Pulled
from .of_vectors import Push as Push
from .of_vectors import Refused as Refused
from .of_worker import Aborted as Aborted
from .of_worker import Beat as Beat
from .of_worker import Computed as Computed
from .of_worker import Failed as Failed
from .of_worker import HeldSum as HeldSum
from .of_worker import Join as Join
from .of_worker import Leave as Leave
from .of_worker import Pushed as Pushed
from .of_worker import Ready as Ready
from .of_worker import Validated as Validated
from .parts import Close as Close
from .parts import Fetch as Fetch
from .parts import Grant as Grant
from .parts import Held as Held
from .parts import Node as Node
from .parts import Open as Open
from .parts import Plan as Plan
from .parts import PortionResult as PortionResult
from .parts import Shard as Shard
from .parts import SumName as SumName
from .to_worker import Apart as Apart
from .to_worker import Begin as Begin
from .to_worker import Dismiss as Dismiss
from .to_worker import End as End
from .to_worker import Flush as Flush
from .to_worker import Grants as Grants
from .to_worker import Heard as Heard
from .to_worker import Reduce as Reduce
from .to_worker import Rejoin as Rejoin
from .to_worker import Settled as Settled
from .to_worker import Validate as Validate
from .to_worker import Welcome as Welcome

__all__ = [
    "COORDINATOR",
    "MESSAGES",
    "PARTS",
    "Aborted",
    "Accept",
    "Answer",
    "Apart",
    "Beat",
    "Begin",
    "Close",
    "Computed",
    "Dismiss",
    "End",
    "Failed",
    "Fetch",
    "Flush",
    "FromServer",
    "FromWorker",
    "Grant",
    "Grants",
    "Heard",
    "Held",
    "HeldSum",
    "Join",
    "Kept",
    "Leave",
    "Message",
    "Node",
    "Open",
    "Plan",
    "PortionResult",
    "Pull",
    "Pulled",
    "Push",
    "Pushed",
    "Ready",
    "Reduce",
    "Refused",
    "Rejoin",
    "Round",
    "Send",
    "Settled",
    "Shard",
    "SumName",
    "ToServer",
    "ToWorker",
    "Validate",
    "Validated",
    "Welcome",
    "Write",
    "Written",
]
