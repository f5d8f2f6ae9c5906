"""Which messages there are, and who may say them to whom.

Knows: the classes. Does not know: what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.optim.vectors.base import Combine, Dot, Drop, Multiply
from cotswold.wire.admin import (
    BucketSeen,
    Drain,
    Draining,
    EventSeen,
    Forget,
    Look,
    Looked,
    Remove,
    Removed,
    RunSeen,
    ServerSeen,
    Undrain,
    Undrained,
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
    Assign,
    Assigned,
    Caught,
    Change,
    Create,
    Describe,
    Described,
    Elsewhere,
    Ended,
    Fence,
    Fenced,
    Find,
    FindSaved,
    Found,
    FoundSaved,
    FrozenState,
    Group,
    Here,
    Leased,
    NotLeading,
    OfBucket,
    Prepare,
    Prepared,
    SessionState,
    Silent,
    TakeOver,
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
"""The name to which workers and servers send."""

CONTROLLERS = "controllers"
"""The name to which servers and clients send what whoever leads the controllers is to hear."""

FromWorker = Join | Beat | Ready | Computed | Failed | Pushed | Aborted | Leave | Validated
"""A worker to the coordinator."""
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
"""The coordinator, or a server, to a worker."""
ToServer = Pull | Push | Round | Accept | Write
FromServer = Pulled | Kept | Refused | Answer | Written
FromReplica = Join | Alive | Leave
"""A replica to the coordinator."""
ToReplica = Admitted | Directions | Rejoin | Dismiss | Applied | UpdateRefused | PulledNewer
"""The coordinator, or a server, to a replica."""
ToUpdates = Update | PullNewer | Order | PullFrozen
"""A replica, or the coordinator, to the asynchronous half of a server."""
ToRank = PullPart | PushPart | PulledNewer
"""The rank of a replica that has the conversation, or a server, to another of its ranks."""
OfData = Offer | Attend | Roster | Depart | Ask | Cancel | Supplied | Unsupplied | Pending | Draw | Dealt
"""Between trainers, data servers and the head of their pool."""
OfCopies = (
    Assign
    | Assigned
    | Caught
    | Create
    | Describe
    | Described
    | Elsewhere
    | Ended
    | Fence
    | Fenced
    | FindSaved
    | FoundSaved
    | Find
    | Found
    | Here
    | Leased
    | NotLeading
    | OfBucket
    | Prepare
    | Prepared
    | Silent
    | TakeOver
)
"""Between the copies of a bucket, controllers and clients."""
OfClusters = Remove | Removed | Forget | Drain | Draining | Undrain | Undrained | Look | Looked
"""Between controllers and whoever operates a cluster."""
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
        Caught,
        Create,
        Describe,
        Described,
        Elsewhere,
        Ended,
        Fence,
        Fenced,
        FindSaved,
        FoundSaved,
        Find,
        Found,
        Here,
        Leased,
        NotLeading,
        OfBucket,
        Prepare,
        Prepared,
        Silent,
        TakeOver,
    ),
    *(Remove, Removed, Forget, Drain, Draining, Undrain, Undrained, Look, Looked),
)
"""Every message; a name says which it is."""
PARTS: tuple[type, ...] = (
    *(SumName, Node, Shard, PortionResult, Grant, Held, Plan, Fetch, Open, Close),
    *(Combine, Multiply, Dot, Drop),
    *(Group, Change, SessionState, FrozenState, Applied, UpdateRefused, Order),
    *(ServerSeen, RunSeen, BucketSeen, EventSeen),
)
"""What fields of messages may hold besides plain values."""


@dataclass(frozen=True)
class Send:
    """A message and whom it is for, by name."""

    to: str
    message: Message
