"""What processes of a cluster say when they begin, besides the messages of `server`.

Knows: the fields. Does not know: what travels how.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.wire import Shard

FINISH_SECONDS = 10.0
"""That whoever hears `Finish` may take to end."""


@dataclass(frozen=True)
class Made:
    """A worker has made its work; it comes before `Join`."""

    name: str
    dtype: str
    """Of the parameters: float32 or float64."""
    size: int
    patterns: int
    flops: tuple[int, int]
    """Of one pattern: of the value, and of the gradient with the value."""
    held: int
    """Patterns for validation."""
    layout: tuple[tuple[str, int, int], ...]
    """The tensors that lie in the parameters: name, rows, numbers a row."""
    products: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Of tensors that are no matrices: what makes their gradients of factors, in numbers."""


@dataclass(frozen=True)
class Give:
    """The coordinator wants the parameters with which a worker's work was made."""


@dataclass(frozen=True)
class Given:
    """They are these."""

    buffers: tuple[object, ...]


@dataclass(frozen=True)
class Serving:
    """A parameter server is there."""

    name: str
    address: str


@dataclass(frozen=True)
class Peers:
    """The workers that are there, and where they are reached by each other."""

    addresses: tuple[tuple[str, str], ...]
    keys: tuple[tuple[str, str], ...] = ()
    """Keys by which servers prove their names to the receiver (`transport.names.pair_key`), by name."""


@dataclass(frozen=True)
class Controllers:
    """Controllers that were started again, and where they are reached."""

    addresses: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Happened:
    """Something has happened among those whom a controller leads."""

    kind: str
    name: str
    sentence: str


@dataclass(frozen=True)
class Finish:
    """A server may go, once its disk has what it has; `FINISH_SECONDS` at most."""


@dataclass(frozen=True)
class Learnt:
    """What a replica has computed since it said so last, whatever became of it."""

    name: str
    steps: int
    samples: int
    value: float
    """The sum of their losses."""
    details: tuple[tuple[str, float], ...]
    """Further sums, by name."""
    seconds: float
    """In which it computed."""
    pushed: tuple[tuple[str, str, int], ...] = ()
    """Tensor, kind of update, and the bytes of its numbers in what was pushed, to all servers."""
    pushes: int = 0
    """How many pushes these steps ended."""


@dataclass(frozen=True)
class Doing:
    """What a replica does now; it is said when that changes, and every second."""

    name: str
    what: str
    waits_for: tuple[str, ...]
    """By name; nobody where it computes."""
    seconds: float
    """Since its last step began, or ended."""


@dataclass(frozen=True)
class RankReady:
    """Another rank of a replica has its endpoint, and hears its first rank."""


@dataclass(frozen=True)
class RankLost:
    """Another rank of a replica has lost a server."""

    server: str
    why: str


@dataclass(frozen=True)
class Visit:
    """A client wants to know what is served; answered by `Terms`."""


@dataclass(frozen=True)
class Terms:
    """What is served to clients that bring their own samples."""

    run: str
    dtype: str
    """Of the parameters: float32 or float64."""
    kind: str
    """Of what is pushed: ``gradient`` or ``delta``."""
    layout: tuple[tuple[str, int, int], ...]
    """The tensors that lie in the parameters: name, rows, numbers a row."""


@dataclass(frozen=True)
class Farewell:
    """The servers end; `Dismiss` follows."""

    why: str


@dataclass(frozen=True)
class Count:
    """The coordinator wants a server's `Counts`."""

    run: str = ""
    """Of this run alone, where servers have several."""


@dataclass(frozen=True)
class Unsaved:
    """What a server would lose if its memory and those of all others were gone now."""

    dirty_bytes: int
    """Of numbers that are not on its disk."""
    window_seconds: float
    """How old the oldest of these changes is."""
    longest_seconds: float
    """The longest that it ever was, in this process."""
    flush_seconds: float
    """What is promised of it, if the disk is fast enough."""


@dataclass(frozen=True)
class Parts:
    """Which parts a server has in what is copied: of the buckets of a run."""

    leads: int
    """Buckets of which it is the primary."""
    copies: int
    """Of which it has a copy, those included."""
    term: int
    """The newest of these."""
    lag: int
    """Changes by which the last of the other copies is behind, of those that it leads."""


@dataclass(frozen=True)
class Counts:
    """What the asynchronous half of a server has done so far."""

    server: str
    updates: int
    """Applied since the run began, each shard's by itself."""
    staleness: float
    """The mean of those that this process has applied."""
    staleness_most: int
    waiting: int
    """Bytes of updates that wait."""
    refused: tuple[tuple[str, int], ...]
    """Updates, by the first word of the reason; and what was no message, or of a stranger, by what it was."""
    shards: int
    queued: int
    """Updates that wait."""
    waits_for: tuple[str, ...]
    """Replicas that make it keep updates of others back."""
    replicas: tuple[tuple[str, int, float, int], ...]
    """Of each that lives: updates applied, each shard's by itself, their mean staleness, and the most."""
    taken_bytes: int = 0
    """Of the numbers of all updates that were taken, as they came."""
    versions: tuple[tuple[int, int], ...] = ()
    """Of each shard: how many updates it has had, from the beginning of the run."""
    applying_seconds: float = 0.0
    """Of processor time, in which updates were read, checked and applied."""
    cpu_seconds: float = 0.0
    """Of processor time, of the whole process: beside that, what messages cost."""
    sent_bytes: tuple[tuple[str, int], ...] = ()
    """`taken_bytes` by who sent them: replicas that live, and ranks of such by themselves."""
    short: tuple[int, int, int] = (0, 0, 0)
    """Buckets whose updates wait for too few servers have them, how many have one of these, how many must."""
    unsaved: Unsaved | None = None
    """None where there is no disk."""
    restored: tuple[tuple[int, int], ...] = ()
    """The version with which each shard's life began that comes from this server's disk."""
    parts: Parts | None = None
    """None where nothing is copied."""


@dataclass(frozen=True)
class Report:
    """Somebody wants to see what a server has of a bucket, or of all; answered by `Reported`."""

    bucket: str = ""


@dataclass(frozen=True)
class CopySeen:
    """One copy of a bucket, as its server has it."""

    bucket: str
    role: str
    term: int
    life: int
    index: int
    """To which it has everything, prepared at least; -1 for nothing that counts."""
    committed: int
    saved: int
    """To which index it is on the disk; -1 where nothing is."""
    behind: tuple[tuple[str, int], ...]
    """Of a primary: how many indexes each other copy is behind."""
    queued_bytes: int
    """Of updates that wait."""
    is_waiting: bool
    """Whether they wait for other copies."""
    spoke_term: int = 0
    """In which it answered clients last, as the primary."""
    spoke_from: float = 0.0
    """When it did so for the first time in that, by the clock of its host that never goes back."""
    spoke_until: float = 0.0
    """And for the last."""


@dataclass(frozen=True)
class RoadSeen:
    """What a server has sent and received on a road."""

    road: str
    """Its name; those of all, with commas, that are one network."""
    address: str
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class Reported:
    """What a server has."""

    server: str
    copies: tuple[CopySeen, ...]
    dirty_bytes: int
    """That are not on its disk."""
    window_seconds: float
    """How old the oldest of them is."""
    has_disk: bool
    refused: tuple[tuple[str, int], ...]
    """Frames and callers, by the reason."""
    roads: tuple[RoadSeen, ...]
    process: int
    """Its number on the server's host."""


@dataclass(frozen=True)
class Export:
    """Somebody wants all of a bucket as it is now; answered by `FoundSaved` and `Prepare` together if the
    server leads it, else by `Reported`."""

    bucket: str


@dataclass(frozen=True)
class Judging:
    """An evaluator is there; it says so every second."""

    name: str


@dataclass(frozen=True)
class Judge:
    """The coordinator wants parameters judged; answered by `Judged`."""

    number: int
    """Samples that count: what the answer is called by."""
    run: str
    """As in pulls."""
    shards: tuple[Shard, ...]
    servers: tuple[tuple[str, str], ...]
    """Names and addresses."""
    dtype: str
    buffers: tuple[object, ...] = ()
    """The parameters; without them those that are on the servers."""


@dataclass(frozen=True)
class Judged:
    """What an evaluator has found."""

    name: str
    number: int
    means: tuple[tuple[str, float], ...]
    """Over all samples, by name: `loss`, and more."""
    seconds: float


Message = (
    Made
    | Give
    | Given
    | Serving
    | Peers
    | Controllers
    | Happened
    | Finish
    | Learnt
    | Doing
    | RankReady
    | RankLost
    | Count
    | Counts
    | Report
    | Reported
    | Export
    | Judging
    | Judge
    | Judged
    | Visit
    | Terms
    | Farewell
)
MESSAGES: tuple[type[Message], ...] = (
    *(Made, Give, Given, Serving, Peers, Controllers, Happened, Finish),
    *(Learnt, Doing, RankReady, RankLost, Count, Counts),
    *(Report, Reported, Export),
    *(Judging, Judge, Judged),
    *(Visit, Terms, Farewell),
)
