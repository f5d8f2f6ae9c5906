"""All messages, by sender and receiver.

Knows: the classes. Does not know: their meaning.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.optim.vectors.base import Combine, Dot, Drop, Multiply
from cotswold.wire.admin import (
    BucketStatus,
    ClusterEvent,
    DeleteRun,
    DeleteRunRequest,
    Drain,
    DrainStatus,
    ReplicaServerStatus,
    RunDeleted,
    RunStatus,
    StatusReply,
    StatusRequest,
    Undrain,
    Undrained,
)
from cotswold.wire.batch import (
    Aborted,
    EndEvaluation,
    FlushSums,
    Grants,
    IsolatePortion,
    Join,
    Leave,
    PointReady,
    PortionFailed,
    PortionsComputed,
    Reduce,
    ResultsAck,
    SessionExpired,
    Shutdown,
    StartEvaluation,
    SumOutcome,
    SumPushed,
    Validate,
    Validated,
    Welcome,
    WorkerHeartbeat,
)
from cotswold.wire.batch_vectors import (
    AcceptSums,
    Pull,
    Pulled,
    Push,
    PushAck,
    PushRejected,
    Round,
    RoundReply,
    Write,
    WriteAck,
)
from cotswold.wire.control import (
    Assign,
    Assigned,
    Create,
    DiskStateReply,
    DiskStateRequest,
    Fence,
    FenceReply,
    Heartbeat,
    LearnerCaughtUp,
    LeaseGrant,
    LookupReply,
    LookupRequest,
    NotLeader,
    PeerUnreachable,
    PrimaryUnreachable,
    RunDescription,
    RunDescriptionRequest,
    ServerExited,
)
from cotswold.wire.dataservice import (
    BatchPending,
    BatchRejected,
    BatchReply,
    BatchRequest,
    CancelRequests,
    DataServerReport,
    EpochAssignment,
    EpochReport,
    JoinPool,
    LeavePool,
    PoolMembers,
)
from cotswold.wire.paramserver import (
    Applied,
    CoordinatorState,
    CoordinatorStateAck,
    FrozenPart,
    PulledNewer,
    PulledPart,
    PullFrozen,
    PullNewer,
    PullPart,
    PushPart,
    ReplicaHeartbeat,
    ReplicaInstructions,
    SessionOpened,
    Update,
    UpdateRefused,
)
from cotswold.wire.replication import (
    BucketChange,
    BucketEnvelope,
    FrozenState,
    Group,
    NotPrimary,
    Prepare,
    Prepared,
    SessionState,
)
from cotswold.wire.types import (
    Close,
    ComputedPortion,
    Fetch,
    Grant,
    Node,
    Open,
    PortionResult,
    ReductionSchedule,
    Shard,
    SumName,
)

COORDINATOR = "coordinator"
"""Name to which workers and servers send."""

CONTROLLERS = "controllers"
"""Name to which servers and clients send messages for the controllers' leader."""

FromWorker = (
    Join
    | WorkerHeartbeat
    | PointReady
    | PortionsComputed
    | PortionFailed
    | SumPushed
    | Aborted
    | Leave
    | Validated
)
"""Messages from a worker to the coordinator."""
ToWorker = (
    Welcome
    | StartEvaluation
    | Grants
    | IsolatePortion
    | FlushSums
    | ResultsAck
    | SumOutcome
    | Reduce
    | EndEvaluation
    | SessionExpired
    | Shutdown
    | Validate
    | Pulled
    | PushAck
    | PushRejected
)
"""Messages from the coordinator, or a server, to a worker."""
ToServer = Pull | Push | Round | AcceptSums | Write
FromServer = Pulled | PushAck | PushRejected | RoundReply | WriteAck
FromReplica = Join | ReplicaHeartbeat | Leave
"""Messages from a replica to the coordinator."""
ToReplica = (
    SessionOpened | ReplicaInstructions | SessionExpired | Shutdown | Applied | UpdateRefused | PulledNewer
)
"""Messages from the coordinator, or a server, to a replica."""
ToUpdates = Update | PullNewer | CoordinatorState | PullFrozen
"""Messages from a replica, or the coordinator, to the asynchronous half of a server."""
ToRank = PullPart | PushPart | PulledNewer
"""Messages from a replica's leading rank, or a server, to another rank of the replica."""
OfData = (
    DataServerReport
    | JoinPool
    | PoolMembers
    | LeavePool
    | BatchRequest
    | CancelRequests
    | BatchReply
    | BatchRejected
    | BatchPending
    | EpochReport
    | EpochAssignment
)
"""Messages between trainers, data servers and the head of their pool."""
OfCopies = (
    Assign
    | Assigned
    | LearnerCaughtUp
    | Create
    | RunDescriptionRequest
    | RunDescription
    | NotPrimary
    | ServerExited
    | Fence
    | FenceReply
    | DiskStateRequest
    | DiskStateReply
    | LookupRequest
    | LookupReply
    | Heartbeat
    | LeaseGrant
    | NotLeader
    | BucketEnvelope
    | Prepare
    | Prepared
    | PeerUnreachable
    | PrimaryUnreachable
)
"""Messages between the replicas of a bucket, controllers and clients."""
OfClusters = (
    DeleteRunRequest
    | RunDeleted
    | DeleteRun
    | Drain
    | DrainStatus
    | Undrain
    | Undrained
    | StatusRequest
    | StatusReply
)
"""Messages between controllers and operators."""
FromUpdates = Applied | UpdateRefused | PulledNewer | CoordinatorStateAck | FrozenPart
Message = (
    FromWorker
    | ToWorker
    | ToServer
    | FromServer
    | FromReplica
    | ToReplica
    | ToUpdates
    | FromUpdates
    | ToRank
    | PulledPart
    | OfData
    | OfCopies
    | OfClusters
)

MESSAGES: tuple[type[Message], ...] = (
    *(
        Join,
        WorkerHeartbeat,
        PointReady,
        PortionsComputed,
        PortionFailed,
        SumPushed,
        Aborted,
        Leave,
        Validated,
    ),
    *(
        Welcome,
        StartEvaluation,
        Grants,
        IsolatePortion,
        FlushSums,
        ResultsAck,
        SumOutcome,
        Reduce,
        EndEvaluation,
        SessionExpired,
        Shutdown,
        Validate,
    ),
    *(Pull, Pulled, Push, PushAck, PushRejected, Round, RoundReply, AcceptSums, Write, WriteAck),
    *(SessionOpened, ReplicaHeartbeat, ReplicaInstructions),
    *(
        Update,
        Applied,
        UpdateRefused,
        PullNewer,
        PulledNewer,
        CoordinatorState,
        CoordinatorStateAck,
        PullFrozen,
        FrozenPart,
    ),
    *(PullPart, PulledPart, PushPart),
    *(
        DataServerReport,
        JoinPool,
        PoolMembers,
        LeavePool,
        BatchRequest,
        CancelRequests,
        BatchReply,
        BatchRejected,
        BatchPending,
        EpochReport,
        EpochAssignment,
    ),
    *(
        Assign,
        Assigned,
        LearnerCaughtUp,
        Create,
        RunDescriptionRequest,
        RunDescription,
        NotPrimary,
        ServerExited,
        Fence,
        FenceReply,
        DiskStateRequest,
        DiskStateReply,
        LookupRequest,
        LookupReply,
        Heartbeat,
        LeaseGrant,
        NotLeader,
        BucketEnvelope,
        Prepare,
        Prepared,
        PeerUnreachable,
        PrimaryUnreachable,
    ),
    *(
        DeleteRunRequest,
        RunDeleted,
        DeleteRun,
        Drain,
        DrainStatus,
        Undrain,
        Undrained,
        StatusRequest,
        StatusReply,
    ),
)
"""Every message class; the class name identifies the message."""
PARTS: tuple[type, ...] = (
    *(SumName, Node, Shard, PortionResult, Grant, ComputedPortion, ReductionSchedule, Fetch, Open, Close),
    *(Combine, Multiply, Dot, Drop),
    *(Group, BucketChange, SessionState, FrozenState, Applied, UpdateRefused, CoordinatorState),
    *(ReplicaServerStatus, RunStatus, BucketStatus, ClusterEvent),
)
"""Types of message fields other than plain values."""


@dataclass(frozen=True)
class Send:
    """A message and the name of its receiver."""

    to: str
    message: Message
