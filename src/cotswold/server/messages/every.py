"""Which messages there are, and who may say them to whom.

Knows: the classes. Does not know: what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.optim.vectors import Combine, Dot, Drop, Multiply
from cotswold.server.messages.of_rounds import Accept, Answer, Round, Write, Written
from cotswold.server.messages.of_vectors import Kept, Pull, Pulled, Push, Refused
from cotswold.server.messages.of_worker import (
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
from cotswold.server.messages.parts import (
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
from cotswold.server.messages.to_worker import (
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

COORDINATOR = "coordinator"
"""The name to which workers and servers send."""

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
Message = FromWorker | ToWorker | ToServer | FromServer

MESSAGES: tuple[type[Message], ...] = (
    *(Join, Beat, Ready, Computed, Failed, Pushed, Aborted, Leave, Validated),
    *(Welcome, Begin, Grants, Apart, Flush, Heard, Settled, Reduce, End, Rejoin, Dismiss, Validate),
    *(Pull, Pulled, Push, Kept, Refused, Round, Answer, Accept, Write, Written),
)
"""Every message; a name says which it is."""
PARTS: tuple[type, ...] = (
    *(SumName, Node, Shard, PortionResult, Grant, Held, Plan, Fetch, Open, Close),
    *(Combine, Multiply, Dot, Drop),
)
"""What fields of messages may hold besides plain values."""


@dataclass(frozen=True)
class Send:
    """A message and whom it is for, by name."""

    to: str
    message: Message
