"""Messages about the start, state and end of a cluster's processes.

Knows: the fields. Does not know: transport.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.wire import Shard

STOP_SECONDS = 10.0
"""Maximum seconds that a process may take to exit after `StopProcess`."""


@dataclass(frozen=True)
class WorkerReady:
    """A worker has built its work; sent before `Join`."""

    name: str
    dtype: str
    """Type of the parameters: float32 or float64."""
    size: int
    samples: int
    flops: tuple[int, int]
    """Floating-point operations per sample: for the value, and for value and gradient."""
    held_out: int
    """Number of samples for validation."""
    layout: tuple[tuple[str, int, int], ...]
    """(name, rows, numbers per row) of each tensor in the parameters."""
    products: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """For tensors that are not matrices: (name, description of the product that turns factors into their
    gradient)."""


@dataclass(frozen=True)
class GetParameters:
    """The coordinator requests the initial parameters of a worker's work."""


@dataclass(frozen=True)
class Parameters:
    """The initial parameters."""

    buffers: tuple[object, ...]


@dataclass(frozen=True)
class ServerReady:
    """A parameter server is ready."""

    name: str
    address: str


@dataclass(frozen=True)
class PeerAddresses:
    """The connected workers and the addresses at which they reach each other."""

    addresses: tuple[tuple[str, str], ...]
    keys: tuple[tuple[str, str], ...] = ()
    """(server, key): keys by which servers prove their names to the receiver (`transport.names.pair_key`)."""


@dataclass(frozen=True)
class ControllerAddresses:
    """Restarted controllers and their addresses."""

    addresses: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class EventReport:
    """An event among the processes that a controller manages."""

    kind: str
    name: str
    sentence: str


@dataclass(frozen=True)
class StopProcess:
    """The server exits when its disk has all data; within `STOP_SECONDS`."""


@dataclass(frozen=True)
class StepMetrics:
    """Work of a replica since its last report, even if it was discarded."""

    name: str
    steps: int
    samples: int
    value: float
    """Sum of the losses."""
    details: tuple[tuple[str, float], ...]
    """Further sums, by name."""
    seconds: float
    """Seconds spent computing."""
    pushed: tuple[tuple[str, str, int], ...] = ()
    """(tensor, kind of update, bytes) pushed to all servers."""
    pushes: int = 0
    """Number of pushes that ended these steps."""


@dataclass(frozen=True)
class ActivityReport:
    """Current activity of a replica; sent on change, and every second."""

    name: str
    activity: str
    waits_for: tuple[str, ...]
    """Names of the processes it waits for; empty while it computes."""
    seconds: float
    """Seconds since its last step began or ended."""


@dataclass(frozen=True)
class RankReady:
    """Another rank of a replica has an endpoint and receives messages of the first rank."""


@dataclass(frozen=True)
class RankLost:
    """Another rank of a replica has lost a server."""

    server: str
    why: str


@dataclass(frozen=True)
class ConnectRequest:
    """A client asks for a description of the served parameters; answered by `RunTerms`."""


@dataclass(frozen=True)
class RunTerms:
    """Description of the parameters served to clients that bring their own samples."""

    run: str
    dtype: str
    """Type of the parameters: float32 or float64."""
    kind: str
    """Kind of a push: ``gradient`` or ``delta``."""
    layout: tuple[tuple[str, int, int], ...]
    """(name, rows, numbers per row) of each tensor in the parameters."""


@dataclass(frozen=True)
class Goodbye:
    """The servers exit; `Shutdown` follows."""

    why: str


@dataclass(frozen=True)
class CountersRequest:
    """The coordinator requests a server's `ServerCounters`."""

    run: str = ""
    """Count only this run, if servers have several."""


@dataclass(frozen=True)
class FlushBacklog:
    """Changes a server would lose if the memory of all servers were lost now."""

    dirty_bytes: int
    """Bytes of numbers that are not on its disk."""
    window_seconds: float
    """Age in seconds of the oldest of these changes."""
    longest_seconds: float
    """Largest such age in this process."""
    flush_seconds: float
    """Target for this age, if the disk is fast enough."""


@dataclass(frozen=True)
class BucketRoles:
    """Roles of a server in the buckets of a run."""

    leads: int
    """Buckets of which it is the primary."""
    copies: int
    """Buckets of which it has a replica, including the primary."""
    term: int
    """Newest term of these."""
    lag: int
    """Changes by which the slowest follower is behind, over the buckets that it leads."""


@dataclass(frozen=True)
class ServerCounters:
    """Counters of the asynchronous half of a server."""

    server: str
    updates: int
    """Updates applied since the run began, counted per shard."""
    staleness: float
    """Mean staleness of the updates that this process has applied."""
    staleness_most: int
    waiting: int
    """Bytes of queued updates."""
    refused: tuple[tuple[str, int], ...]
    """(first word of the reason, number) of rejected updates, and of malformed or unauthenticated
    messages."""
    shards: int
    queued: int
    """Number of queued updates."""
    waits_for: tuple[str, ...]
    """Replicas whose progress blocks updates of others."""
    replicas: tuple[tuple[str, int, float, int], ...]
    """For each live replica: updates applied (per shard), their mean staleness, the maximum."""
    accepted_bytes: int = 0
    """Bytes of numbers in all accepted updates, as received."""
    versions: tuple[tuple[int, int], ...] = ()
    """(shard, number of updates since the beginning of the run)."""
    applying_seconds: float = 0.0
    """CPU seconds spent on reading, checking and applying updates."""
    cpu_seconds: float = 0.0
    """CPU seconds of the whole process; the difference to ``applying_seconds`` is the cost of messages."""
    sent_bytes: tuple[tuple[str, int], ...] = ()
    """`accepted_bytes` by sender: live replicas, and each of their ranks."""
    short: tuple[int, int, int] = (0, 0, 0)
    """Buckets with too few members to commit updates; members of the smallest; required members."""
    unsaved: FlushBacklog | None = None
    """None without a disk."""
    restored: tuple[tuple[int, int], ...] = ()
    """(shard, version) with which each shard's incarnation began that was restored from this server's
    disk."""
    roles: BucketRoles | None = None
    """None without replication."""


@dataclass(frozen=True)
class ServerReportRequest:
    """Request a server's state of one bucket, or of all; answered by `ServerReport`."""

    bucket: str = ""


@dataclass(frozen=True)
class BucketReplicaStatus:
    """One replica of a bucket, as its server has it."""

    bucket: str
    role: str
    term: int
    incarnation: int
    index: int
    """Index up to which it has at least prepared everything; -1 if it has no valid state."""
    committed: int
    durable_index: int
    """Index up to which its state is on disk; -1 for none."""
    lags: tuple[tuple[str, int], ...]
    """For a primary: (server, number of indexes that it is behind)."""
    queued_bytes: int
    """Bytes of queued updates."""
    is_blocked: bool
    """True if the updates wait for other replicas."""
    replied_term: int = 0
    """Term in which it last replied to clients as the primary."""
    replied_from: float = 0.0
    """Time of the first such reply in that term, on the host's monotonic clock."""
    replied_until: float = 0.0
    """Time of the last such reply."""


@dataclass(frozen=True)
class NetworkTraffic:
    """Bytes that a server has sent and received over a network."""

    network: str
    """Name of the network; several names separated by commas if they are one network."""
    address: str
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class ServerReport:
    """State of a server."""

    server: str
    copies: tuple[BucketReplicaStatus, ...]
    dirty_bytes: int
    """Bytes that are not on its disk."""
    window_seconds: float
    """Age in seconds of the oldest of them."""
    has_disk: bool
    rejected: tuple[tuple[str, int], ...]
    """(reason, number) of rejected frames and connections."""
    networks: tuple[NetworkTraffic, ...]
    process: int
    """Process id on the server's host."""


@dataclass(frozen=True)
class ExportRequest:
    """Request the current contents of a bucket; answered by `DiskStateReply` and `Prepare` in one frame if
    the server is its primary, otherwise by `ServerReport`."""

    bucket: str


@dataclass(frozen=True)
class EvaluatorHeartbeat:
    """Heartbeat of an evaluator, every second."""

    name: str


@dataclass(frozen=True)
class Evaluate:
    """The coordinator requests an evaluation of parameters; answered by `EvaluateReply`."""

    number: int
    """Number of counted samples; it identifies the reply."""
    run: str
    """Run name, as in pulls."""
    shards: tuple[Shard, ...]
    servers: tuple[tuple[str, str], ...]
    """(name, address) of each server."""
    dtype: str
    buffers: tuple[object, ...] = ()
    """The parameters; if empty, those on the servers."""


@dataclass(frozen=True)
class EvaluateReply:
    """Result of an evaluation."""

    name: str
    number: int
    means: tuple[tuple[str, float], ...]
    """Means over all samples by name: `loss` and others."""
    seconds: float


LifecycleMessage = (
    WorkerReady
    | GetParameters
    | Parameters
    | ServerReady
    | PeerAddresses
    | ControllerAddresses
    | EventReport
    | StopProcess
    | StepMetrics
    | ActivityReport
    | RankReady
    | RankLost
    | CountersRequest
    | ServerCounters
    | ServerReportRequest
    | ServerReport
    | ExportRequest
    | EvaluatorHeartbeat
    | Evaluate
    | EvaluateReply
    | ConnectRequest
    | RunTerms
    | Goodbye
)
MESSAGES: tuple[type[LifecycleMessage], ...] = (
    *(
        WorkerReady,
        GetParameters,
        Parameters,
        ServerReady,
        PeerAddresses,
        ControllerAddresses,
        EventReport,
        StopProcess,
    ),
    *(StepMetrics, ActivityReport, RankReady, RankLost, CountersRequest, ServerCounters),
    *(ServerReportRequest, ServerReport, ExportRequest),
    *(EvaluatorHeartbeat, Evaluate, EvaluateReply),
    *(ConnectRequest, RunTerms, Goodbye),
)
