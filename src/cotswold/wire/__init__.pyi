from .admin import BucketSeen as BucketSeen
from .admin import Drain as Drain
from .admin import Draining as Draining
from .admin import EventSeen as EventSeen
from .admin import Forget as Forget
from .admin import Look as Look
from .admin import Looked as Looked
from .admin import Remove as Remove
from .admin import Removed as Removed
from .admin import RunSeen as RunSeen
from .admin import ServerSeen as ServerSeen
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
from .replication import Assign as Assign
from .replication import Assigned as Assigned
from .replication import Caught as Caught
from .replication import Change as Change
from .replication import Create as Create
from .replication import Describe as Describe
from .replication import Described as Described
from .replication import Elsewhere as Elsewhere
from .replication import Enclosed as Enclosed
from .replication import Ended as Ended
from .replication import Fence as Fence
from .replication import Fenced as Fenced
from .replication import Find as Find
from .replication import FindSaved as FindSaved
from .replication import Found as Found
from .replication import FoundSaved as FoundSaved
from .replication import FrozenState as FrozenState
from .replication import Group as Group
from .replication import Here as Here
from .replication import Leased as Leased
from .replication import NotLeading as NotLeading
from .replication import OfBucket as OfBucket
from .replication import Prepare as Prepare
from .replication import Prepared as Prepared
from .replication import SessionState as SessionState
from .replication import Silent as Silent
from .replication import TakeOver as TakeOver
from .types import Close as Close
from .types import ComputedPortion as ComputedPortion
from .types import Fetch as Fetch
from .types import Grant as Grant
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
    "AcceptSums",
    "Applied",
    "BatchRejected",
    "BatchReply",
    "BatchRequest",
    "CancelRequests",
    "Close",
    "ComputedPortion",
    "CoordinatorState",
    "CoordinatorStateAck",
    "DataServerReport",
    "EndEvaluation",
    "EpochAssignment",
    "EpochReport",
    "Fetch",
    "FlushSums",
    "FromReplica",
    "FromServer",
    "FromUpdates",
    "FromWorker",
    "FrozenPart",
    "Grant",
    "Grants",
    "HeldOutSum",
    "IsolatePortion",
    "Join",
    "JoinPool",
    "Leave",
    "LeavePool",
    "Message",
    "Node",
    "Open",
    "Plan",
    "PointReady",
    "PoolMembers",
    "PortionFailed",
    "PortionResult",
    "PortionsComputed",
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
    "ReplicaHeartbeat",
    "ReplicaInstructions",
    "ResultsAck",
    "Round",
    "RoundReply",
    "Send",
    "SessionExpired",
    "SessionOpened",
    "Shard",
    "Shutdown",
    "StartEvaluation",
    "SumName",
    "SumOutcome",
    "SumPushed",
    "ToRank",
    "ToReplica",
    "ToServer",
    "ToUpdates",
    "ToWorker",
    "Update",
    "UpdateRefused",
    "Validate",
    "Validated",
    "Welcome",
    "WorkerHeartbeat",
    "Write",
    "WriteAck",
]
