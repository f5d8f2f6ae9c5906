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
    Draining,
    ReplicaServerStatus,
    RunDeleted,
    RunStatus,
    StatusReply,
    StatusRequest,
    Undrain,
    Undrained,
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
    Ask,
    Attend,
    Cancel,
    Dealt,
    Depart,
    Draw,
    Offer,
    Pending,
    Roster,
    Supplied,
    Unsupplied,
)
from cotswold.wire.of_ranks import PulledPart, PullPart, PushPart
from cotswold.wire.of_replicas import Admitted, Alive, Directions
from cotswold.wire.of_rounds import Accept, Answer, Round, Write, Written
from cotswold.wire.of_updates import (
    Applied,
    FrozenPart,
    Order,
    Ordered,
    PulledNewer,
    PullFrozen,
    PullNewer,
    Update,
    UpdateRefused,
)
from cotswold.wire.of_vectors import Kept, Pull, Pulled, Push, Refused
from cotswold.wire.of_worker import (
    Aborted,
    Beat,
    Computed,
    Failed,
    Join,
    Leave,
    Pushed,
    Ready,
    Validated,
)
from cotswold.wire.replication import (
    BucketEnvelope,
    Change,
    FrozenState,
    Group,
    NotPrimary,
    Prepare,
    Prepared,
    SessionState,
)
from cotswold.wire.to_worker import (
    Apart,
    Begin,
    Dismiss,
    End,
    Flush,
    Grants,
    Heard,
    Reduce,
    Rejoin,
    Settled,
    Validate,
    Welcome,
)
from cotswold.wire.types import (
    Close,
    Fetch,
    Grant,
    Held,
    Node,
    Open,
    Plan,
    PortionResult,
    Shard,
    SumName,
)

COORDINATOR = "coordinator"
"""Name to which workers and servers send."""

CONTROLLERS = "controllers"
"""Name to which servers and clients send messages for the controllers' leader."""

FromWorker = Join | Beat | Ready | Computed | Failed | Pushed | Aborted | Leave | Validated
"""Messages from a worker to the coordinator."""
ToWorker = (
    Welcome
    | Begin
    | Grants
    | Apart
    | Flush
    | Heard
    | Settled
    | Reduce
    | End
    | Rejoin
    | Dismiss
    | Validate
    | Pulled
    | Kept
    | Refused
)
"""Messages from the coordinator, or a server, to a worker."""
ToServer = Pull | Push | Round | Accept | Write
FromServer = Pulled | Kept | Refused | Answer | Written
FromReplica = Join | Alive | Leave
"""Messages from a replica to the coordinator."""
ToReplica = Admitted | Directions | Rejoin | Dismiss | Applied | UpdateRefused | PulledNewer
"""Messages from the coordinator, or a server, to a replica."""
ToUpdates = Update | PullNewer | Order | PullFrozen
"""Messages from a replica, or the coordinator, to the asynchronous half of a server."""
ToRank = PullPart | PushPart | PulledNewer
"""Messages from a replica's leading rank, or a server, to another rank of the replica."""
OfData = Offer | Attend | Roster | Depart | Ask | Cancel | Supplied | Unsupplied | Pending | Draw | Dealt
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
    | Draining
    | Undrain
    | Undrained
    | StatusRequest
    | StatusReply
)
"""Messages between controllers and operators."""
FromUpdates = Applied | UpdateRefused | PulledNewer | Ordered | FrozenPart
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
    *(Join, Beat, Ready, Computed, Failed, Pushed, Aborted, Leave, Validated),
    *(Welcome, Begin, Grants, Apart, Flush, Heard, Settled, Reduce, End, Rejoin, Dismiss, Validate),
    *(Pull, Pulled, Push, Kept, Refused, Round, Answer, Accept, Write, Written),
    *(Admitted, Alive, Directions),
    *(Update, Applied, UpdateRefused, PullNewer, PulledNewer, Order, Ordered, PullFrozen, FrozenPart),
    *(PullPart, PulledPart, PushPart),
    *(Offer, Attend, Roster, Depart, Ask, Cancel, Supplied, Unsupplied, Pending, Draw, Dealt),
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
        Draining,
        Undrain,
        Undrained,
        StatusRequest,
        StatusReply,
    ),
)
"""Every message class; the class name identifies the message."""
PARTS: tuple[type, ...] = (
    *(SumName, Node, Shard, PortionResult, Grant, Held, Plan, Fetch, Open, Close),
    *(Combine, Multiply, Dot, Drop),
    *(Group, Change, SessionState, FrozenState, Applied, UpdateRefused, Order),
    *(ReplicaServerStatus, RunStatus, BucketStatus, ClusterEvent),
)
"""Types of message fields other than plain values."""


@dataclass(frozen=True)
class Send:
    """A message and the name of its receiver."""

    to: str
    message: Message
