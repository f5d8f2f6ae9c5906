from .admin import BucketStatus as BucketStatus
from .admin import ClusterEvent as ClusterEvent
from .admin import DeleteRun as DeleteRun
from .admin import DeleteRunRequest as DeleteRunRequest
from .admin import Drain as Drain
from .admin import Draining as Draining
from .admin import ReplicaServerStatus as ReplicaServerStatus
from .admin import RunDeleted as RunDeleted
from .admin import RunStatus as RunStatus
from .admin import StatusReply as StatusReply
from .admin import StatusRequest as StatusRequest
from .admin import Undrain as Undrain
from .admin import Undrained as Undrained
from .control import Assign as Assign
from .control import Assigned as Assigned
from .control import Create as Create
from .control import DiskStateReply as DiskStateReply
from .control import DiskStateRequest as DiskStateRequest
from .control import Fence as Fence
from .control import FenceReply as FenceReply
from .control import Heartbeat as Heartbeat
from .control import LearnerCaughtUp as LearnerCaughtUp
from .control import LeaseGrant as LeaseGrant
from .control import LookupReply as LookupReply
from .control import LookupRequest as LookupRequest
from .control import NotLeader as NotLeader
from .control import PeerUnreachable as PeerUnreachable
from .control import PrimaryUnreachable as PrimaryUnreachable
from .control import RunDescription as RunDescription
from .control import RunDescriptionRequest as RunDescriptionRequest
from .control import ServerExited as ServerExited
from .dataservice import POOL as POOL
from .dataservice import Ask as Ask
from .dataservice import Attend as Attend
from .dataservice import Cancel as Cancel
from .dataservice import Dealt as Dealt
from .dataservice import Depart as Depart
from .dataservice import Draw as Draw
from .dataservice import Offer as Offer
from .dataservice import Pending as Pending
from .dataservice import Roster as Roster
from .dataservice import Supplied as Supplied
from .dataservice import Unsupplied as Unsupplied
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
from .registry import CONTROLLERS as CONTROLLERS
from .registry import COORDINATOR as COORDINATOR
from .registry import MESSAGES as MESSAGES
from .registry import PARTS as PARTS
from .registry import FromReplica as FromReplica
from .registry import FromServer as FromServer
from .registry import FromUpdates as FromUpdates
from .registry import FromWorker as FromWorker
from .registry import Message as Message
from .registry import Send as Send
from .registry import ToRank as ToRank
from .registry import ToReplica as ToReplica
from .registry import ToServer as ToServer
from .registry import ToUpdates as ToUpdates
from .registry import ToWorker as ToWorker
from .replication import BucketEnvelope as BucketEnvelope
from .replication import BucketMessage as BucketMessage
from .replication import Change as Change
from .replication import FrozenState as FrozenState
from .replication import Group as Group
from .replication import NotPrimary as NotPrimary
from .replication import Prepare as Prepare
from .replication import Prepared as Prepared
from .replication import SessionState as SessionState
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
from .types import Close as Close
from .types import Fetch as Fetch
from .types import Grant as Grant
from .types import Held as Held
from .types import Node as Node
from .types import Open as Open
from .types import Plan as Plan
from .types import PortionResult as PortionResult
from .types import Shard as Shard
from .types import SumName as SumName

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
