from .every import CONTROLLERS as CONTROLLERS
from .every import COORDINATOR as COORDINATOR
from .every import MESSAGES as MESSAGES
from .every import PARTS as PARTS
from .every import FromReplica as FromReplica
from .every import FromServer as FromServer
from .every import FromUpdates as FromUpdates
from .every import FromWorker as FromWorker
from .every import Message as Message
from .every import Send as Send
from .every import ToRank as ToRank
from .every import ToReplica as ToReplica
from .every import ToServer as ToServer
from .every import ToUpdates as ToUpdates
from .every import ToWorker as ToWorker
from .of_clusters import BucketSeen as BucketSeen
from .of_clusters import Drain as Drain
from .of_clusters import Draining as Draining
from .of_clusters import EventSeen as EventSeen
from .of_clusters import Forget as Forget
from .of_clusters import Look as Look
from .of_clusters import Looked as Looked
from .of_clusters import Remove as Remove
from .of_clusters import Removed as Removed
from .of_clusters import RunSeen as RunSeen
from .of_clusters import ServerSeen as ServerSeen
from .of_clusters import Undrain as Undrain
from .of_clusters import Undrained as Undrained
from .of_copies import Assign as Assign
from .of_copies import Assigned as Assigned
from .of_copies import Caught as Caught
from .of_copies import Change as Change
from .of_copies import Create as Create
from .of_copies import Describe as Describe
from .of_copies import Described as Described
from .of_copies import Elsewhere as Elsewhere
from .of_copies import Enclosed as Enclosed
from .of_copies import Ended as Ended
from .of_copies import Fence as Fence
from .of_copies import Fenced as Fenced
from .of_copies import Find as Find
from .of_copies import FindSaved as FindSaved
from .of_copies import Found as Found
from .of_copies import FoundSaved as FoundSaved
from .of_copies import FrozenState as FrozenState
from .of_copies import Group as Group
from .of_copies import Here as Here
from .of_copies import Leased as Leased
from .of_copies import NotLeading as NotLeading
from .of_copies import OfBucket as OfBucket
from .of_copies import Prepare as Prepare
from .of_copies import Prepared as Prepared
from .of_copies import SessionState as SessionState
from .of_copies import Silent as Silent
from .of_copies import TakeOver as TakeOver
from .of_data import POOL as POOL
from .of_data import Ask as Ask
from .of_data import Attend as Attend
from .of_data import Cancel as Cancel
from .of_data import Dealt as Dealt
from .of_data import Depart as Depart
from .of_data import Draw as Draw
from .of_data import Offer as Offer
from .of_data import Pending as Pending
from .of_data import Roster as Roster
from .of_data import Supplied as Supplied
from .of_data import Unsupplied as Unsupplied
from .of_ranks import PulledPart as PulledPart
from .of_ranks import PullPart as PullPart
from .of_ranks import PushPart as PushPart
from .of_replicas import Admitted as Admitted
from .of_replicas import Alive as Alive
from .of_replicas import Directions as Directions
from .of_rounds import Accept as Accept
from .of_rounds import Answer as Answer
from .of_rounds import Round as Round
from .of_rounds import Write as Write
from .of_rounds import Written as Written
from .of_updates import Applied as Applied
from .of_updates import FrozenPart as FrozenPart
from .of_updates import Order as Order
from .of_updates import Ordered as Ordered
from .of_updates import PulledNewer as PulledNewer
from .of_updates import PullFrozen as PullFrozen
from .of_updates import PullNewer as PullNewer
from .of_updates import Ranges as Ranges
from .of_updates import Update as Update
from .of_updates import UpdateRefused as UpdateRefused
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
    "POOL",
    "Aborted",
    "Accept",
    "Admitted",
    "Alive",
    "Answer",
    "Apart",
    "Applied",
    "Ask",
    "Attend",
    "Beat",
    "Begin",
    "Cancel",
    "Close",
    "Computed",
    "Dealt",
    "Depart",
    "Directions",
    "Dismiss",
    "Draw",
    "End",
    "Failed",
    "Fetch",
    "Flush",
    "FromReplica",
    "FromServer",
    "FromUpdates",
    "FromWorker",
    "FrozenPart",
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
    "Offer",
    "Open",
    "Order",
    "Ordered",
    "Plan",
    "PortionResult",
    "Pull",
    "PullFrozen",
    "PullNewer",
    "PullPart",
    "Pulled",
    "PulledNewer",
    "PulledPart",
    "Push",
    "PushPart",
    "Pushed",
    "Ranges",
    "Ready",
    "Reduce",
    "Refused",
    "Rejoin",
    "Roster",
    "Round",
    "Send",
    "Settled",
    "Shard",
    "SumName",
    "Supplied",
    "ToRank",
    "ToReplica",
    "ToServer",
    "ToUpdates",
    "ToWorker",
    "Unsupplied",
    "Update",
    "UpdateRefused",
    "Validate",
    "Validated",
    "Welcome",
    "Write",
    "Written",
]
