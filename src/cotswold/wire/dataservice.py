"""Messages between trainers, data servers and the head of their pool.

Knows: the fields. Does not know: what a sample is, how servers produce it.

A request names samples by their rows in a split, and a *view* of them: the split, its augmentation, the
window. The result depends only on these, so any server may answer any request, and answer it twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.wire.paramserver import Ranges

POOL = "pool"
"""Name of the head, to which trainers and data servers send."""


@dataclass(frozen=True)
class DataServerReport:
    """Heartbeat of a data server, with the store that it serves."""

    name: str
    address: str
    terms: str
    """Description of the served data as JSON; the same for all servers of a pool."""
    samples_sent: int
    """Samples sent so far."""
    seconds: float
    """Total seconds that its threads took to prepare them."""
    hits: int
    """Samples found in its cache."""
    misses: int
    cached_bytes: int
    cached_bytes_max: int
    """Peak size of the cache in bytes."""
    queued_requests: int
    """Queued requests."""
    batches: int = 0
    """Batches sent so far, which contained those samples."""
    sent_bytes: int = 0
    """Bytes of those batches."""


@dataclass(frozen=True)
class JoinPool:
    """Heartbeat of a trainer; answered by `PoolMembers` if the members have changed."""

    name: str
    address: str
    store: str
    """Identity of the requested store; empty for any."""
    version: int
    """Newest `PoolMembers` version that the trainer has; 0 for none."""
    delivered: int = 0
    """Samples delivered to its loop."""
    waited_seconds: float = 0.0
    """Seconds that its loop has waited for samples."""


@dataclass(frozen=True)
class PoolMembers:
    """The data servers of the pool."""

    pool: str
    """Random name, unique among pools."""
    version: int
    servers: tuple[tuple[str, str], ...]
    """(name, address) of each data server."""
    terms: str
    """Description of the served data as JSON; empty until a server has reported."""
    why: str = ""
    """Reason for rejecting the trainer; empty if it is accepted."""


@dataclass(frozen=True)
class LeavePool:
    """A trainer or a data server leaves."""

    name: str


@dataclass(frozen=True)
class BatchRequest:
    """Request a batch, or several batches of equal size; answered by `BatchReply` or `BatchRejected`."""

    number: int
    """Sequence number 1, 2, 3, ... of this trainer's requests."""
    view: str
    """View of the samples, as JSON."""
    epoch: int
    samples: int
    """Number of samples in all batches."""
    buffers: tuple[object, ...]
    """One buffer: the rows, int64, of the batches in order."""
    batches: int = 1


@dataclass(frozen=True)
class CancelRequests:
    """A trainer cancels these requests."""

    numbers: tuple[int, ...]


@dataclass(frozen=True)
class BatchReply:
    """The requested batches."""

    server: str
    number: int
    shape: tuple[int, ...]
    """(y, x, channel, image) of each batch, float32."""
    targets: tuple[int, ...]
    """Shape of the targets of each batch: (image,) for classes, int64; (image, number) for regression,
    float32."""
    buffers: tuple[object, ...]
    """Samples and targets, batch after batch."""
    batches: int = 1


@dataclass(frozen=True)
class BatchRejected:
    """A data server rejects a request."""

    server: str
    number: int
    why: str
    """Reason; empty if the server is overloaded."""


@dataclass(frozen=True)
class BatchPending:
    """The server is alive and still prepares a batch that was requested again."""

    server: str
    number: int


@dataclass(frozen=True)
class EpochReport:
    """Heartbeat of a trainer in a shared epoch: its requests and its progress.

    It is also sent on every change. Answered by `EpochAssignment`.
    """

    name: str
    pool: str
    """Pool name from `PoolMembers`; another pool ignores the message."""
    stream: str
    """Name under which trainers share epochs."""
    description: tuple[tuple[str, str], ...]
    """(name, value) pairs that describe the data and their order; the same for all trainers of a stream."""
    samples: int
    """Number of samples in an epoch."""
    at_least_once: bool
    epoch: int
    """Number of the epoch; -1 for the current one."""
    session: int
    """Number 1, 2, 3, ... of this trainer's pass."""
    number: int
    """Number 1, 2, 3, ... of this session's messages; older messages are dropped."""
    batch_samples: int
    """Maximum samples per batch."""
    max_batches: int
    """Maximum batches that the trainer holds at a time."""
    taking: Ranges
    """Batches that the trainer is about to deliver to its loop."""
    delivered: Ranges
    """Batches that its loop has consumed and that are not acknowledged yet."""
    is_leaving: bool
    """True if the pass has finished: all consumed batches were listed in ``delivered``, now or before."""


@dataclass(frozen=True)
class EpochAssignment:
    """The part of a shared epoch that is assigned to a trainer."""

    stream: str
    session: int
    number: int
    """Number 1, 2, 3, ... of the replies to this session."""
    last_report: int
    """Number of the newest `EpochReport` that was received."""
    epoch: int
    batches: Ranges
    """All assigned batches that the trainer has not delivered to its loop, in order."""
    taken: Ranges
    """The ranges of ``batches`` that no other trainer will receive."""
    is_exhausted: bool
    """True if no more batches are assigned in this epoch."""
    is_ended: bool
    """True if the session has ended: the trainer has left or timed out."""
    why: str = ""
    """Reason for assigning nothing; empty otherwise."""
