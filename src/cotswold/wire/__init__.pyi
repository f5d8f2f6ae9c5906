from .admin import BucketStatus as BucketStatus
from .admin import ClusterEvent as ClusterEvent
from .admin import DeleteRun as DeleteRun
from .admin import DeleteRunRequest as DeleteRunRequest
from .admin import Drain as Drain
from .admin import DrainStatus as DrainStatus
from .admin import ReplicaServerStatus as ReplicaServerStatus
from .admin import RunDeleted as RunDeleted
from .admin import RunStatus as RunStatus
from .admin import StatusReply as StatusReply
from .admin import StatusRequest as StatusRequest
from .admin import Undrain as Undrain
from .admin import Undrained as Undrained
from .batch import Aborted as Aborted
from .batch import EndEvaluation as EndEvaluation
from .batch import FlushSums as FlushSums
from .batch import Grants as Grants
from .batch import HeldOutSum as HeldOutSum
from .batch import IsolatePortion as IsolatePortion
from .batch import Join as Join
from .batch import Leave as Leave
from .batch import PointReady as PointReady
from .batch import PortionFailed as PortionFailed
from .batch import PortionsComputed as PortionsComputed
from .batch import Reduce as Reduce
from .batch import ResultsAck as ResultsAck
from .batch import SessionExpired as SessionExpired
from .batch import Shutdown as Shutdown
from .batch import StartEvaluation as StartEvaluation
from .batch import SumOutcome as SumOutcome
from .batch import SumPushed as SumPushed
from .batch import Validate as Validate
from .batch import Validated as Validated
from .batch import Welcome as Welcome
from .batch import WorkerHeartbeat as WorkerHeartbeat
from .batch_vectors import AcceptSums as AcceptSums
from .batch_vectors import Pull as Pull
from .batch_vectors import Pulled as Pulled
from .batch_vectors import Push as Push
from .batch_vectors import PushAck as PushAck
from .batch_vectors import PushRejected as PushRejected
from .batch_vectors import Round as Round
from .batch_vectors import RoundReply as RoundReply
from .batch_vectors import Write as Write
from .batch_vectors import WriteAck as WriteAck
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
from .dataservice import BatchPending as BatchPending
from .dataservice import BatchRejected as BatchRejected
from .dataservice import BatchReply as BatchReply
from .dataservice import BatchRequest as BatchRequest
from .dataservice import CancelRequests as CancelRequests
from .dataservice import DataServerReport as DataServerReport
from .dataservice import EpochAssignment as EpochAssignment
from .dataservice import EpochReport as EpochReport
from .dataservice import JoinPool as JoinPool
from .dataservice import LeavePool as LeavePool
from .dataservice import PoolMembers as PoolMembers
from .paramserver import Applied as Applied
from .paramserver import CoordinatorState as CoordinatorState
from .paramserver import CoordinatorStateAck as CoordinatorStateAck
from .paramserver import FrozenPart as FrozenPart
from .paramserver import PulledNewer as PulledNewer
from .paramserver import PulledPart as PulledPart
from .paramserver import PullFrozen as PullFrozen
from .paramserver import PullNewer as PullNewer
from .paramserver import PullPart as PullPart
from .paramserver import PushPart as PushPart
from .paramserver import Ranges as Ranges
from .paramserver import ReplicaHeartbeat as ReplicaHeartbeat
from .paramserver import ReplicaInstructions as ReplicaInstructions
from .paramserver import SessionOpened as SessionOpened
from .paramserver import Update as Update
from .paramserver import UpdateRefused as UpdateRefused
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
from .replication import BucketChange as BucketChange
from .replication import BucketEnvelope as BucketEnvelope
from .replication import BucketMessage as BucketMessage
from .replication import FrozenState as FrozenState
from .replication import Group as Group
from .replication import NotPrimary as NotPrimary
from .replication import Prepare as Prepare
from .replication import Prepared as Prepared
from .replication import SessionState as SessionState
from .types import Close as Close
from .types import ComputedPortion as ComputedPortion
from .types import Fetch as Fetch
from .types import Grant as Grant
from .types import Node as Node
from .types import Open as Open
from .types import PortionResult as PortionResult
from .types import ReductionSchedule as ReductionSchedule
from .types import Shard as Shard
from .types import SumName as SumName

__all__ = [
    "CONTROLLERS",
    "COORDINATOR",
    "MESSAGES",
    "PARTS",
    "POOL",
    "Aborted",
    "AcceptSums",
    "Applied",
    "Assign",
    "Assigned",
    "BatchPending",
    "BatchRejected",
    "BatchReply",
    "BatchRequest",
    "BucketChange",
    "BucketEnvelope",
    "BucketMessage",
    "BucketStatus",
    "CancelRequests",
    "Close",
    "ClusterEvent",
    "ComputedPortion",
    "CoordinatorState",
    "CoordinatorStateAck",
    "Create",
    "DataServerReport",
    "DeleteRun",
    "DeleteRunRequest",
    "DiskStateReply",
    "DiskStateRequest",
    "Drain",
    "DrainStatus",
    "EndEvaluation",
    "EpochAssignment",
    "EpochReport",
    "Fence",
    "FenceReply",
    "Fetch",
    "FlushSums",
    "FromReplica",
    "FromServer",
    "FromUpdates",
    "FromWorker",
    "FrozenPart",
    "FrozenState",
    "Grant",
    "Grants",
    "Group",
    "Heartbeat",
    "HeldOutSum",
    "IsolatePortion",
    "Join",
    "JoinPool",
    "LearnerCaughtUp",
    "LeaseGrant",
    "Leave",
    "LeavePool",
    "LookupReply",
    "LookupRequest",
    "Message",
    "Node",
    "NotLeader",
    "NotPrimary",
    "Open",
    "PeerUnreachable",
    "PointReady",
    "PoolMembers",
    "PortionFailed",
    "PortionResult",
    "PortionsComputed",
    "Prepare",
    "Prepared",
    "PrimaryUnreachable",
    "Pull",
    "PullFrozen",
    "PullNewer",
    "PullPart",
    "Pulled",
    "PulledNewer",
    "PulledPart",
    "Push",
    "PushAck",
    "PushPart",
    "PushRejected",
    "Ranges",
    "Reduce",
    "ReductionSchedule",
    "ReplicaHeartbeat",
    "ReplicaInstructions",
    "ReplicaServerStatus",
    "ResultsAck",
    "Round",
    "RoundReply",
    "RunDeleted",
    "RunDescription",
    "RunDescriptionRequest",
    "RunStatus",
    "Send",
    "ServerExited",
    "SessionExpired",
    "SessionOpened",
    "SessionState",
    "Shard",
    "Shutdown",
    "StartEvaluation",
    "StatusReply",
    "StatusRequest",
    "SumName",
    "SumOutcome",
    "SumPushed",
    "ToRank",
    "ToReplica",
    "ToServer",
    "ToUpdates",
    "ToWorker",
    "Undrain",
    "Undrained",
    "Update",
    "UpdateRefused",
    "Validate",
    "Validated",
    "Welcome",
    "WorkerHeartbeat",
    "Write",
    "WriteAck",
]
