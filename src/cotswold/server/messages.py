"""What coordinator, workers and parameter servers say to each other: every message, as a value.

Knows: the fields. Does not know: how they are written down, sockets, what a buffer holds.

Of a field's type there are: int, float, str, bool, None, tuples of these, and the classes of `PARTS`;
whatever is large is in a field named ``buffers`` and is handed on as it is. All may come late, twice, in
another order, or never: each message names the session, the evaluation and the number that make a second one
harmless, and whoever waits for an answer asks again.

Glossary:

- *session*: a worker between its joining and its end, a number that is never given again. A worker that was
  silent too long and wakes up has a session that is void, and joins anew.
- *evaluation*: a number that only grows.
- *portion*: a run of places in the dealt order of the patterns (`dealing`).
- *sum*: what portions add up to on one worker, named by (session, number). It counts whole or not at all.
- *node* (level, index) of the binary tree over portions: [index · 2**level, (index + 1) · 2**level).
- *round*: one message to each server, and its answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.optim.vectors import Combine, Command, Dot, Drop, Multiply

COORDINATOR = "coordinator"
"""The name to which workers and servers send."""


# --- parts of messages ---


@dataclass(frozen=True, order=True)
class SumName:
    """A sum, for ever."""

    session: int
    number: int


@dataclass(frozen=True, order=True)
class Node:
    """An aligned run of portions: [index · 2**level, (index + 1) · 2**level)."""

    level: int
    index: int


@dataclass(frozen=True)
class Shard:
    """A range of the flat vector that one server has."""

    number: int
    server: str
    start: int
    stop: int
    tensor: str
    """The tensor that the range lies in."""
    block: int
    """Which block of rows of that tensor: with the tensor's name what routes it."""


@dataclass(frozen=True)
class PortionResult:
    """What one portion adds up to, but for the gradient."""

    portion: int
    samples: int
    value: float
    details: tuple[tuple[str, float], ...] = ()
    """Further sums, by name."""
    seconds: float = 0.0
    """What it took, on the worker's clock."""


@dataclass(frozen=True)
class Held:
    """A portion that a worker has computed and that no shard counts yet."""

    grant: int
    result: PortionResult
    number: int
    """The sum that it is in."""
    flushed: bool
    """Whether that sum is complete and on its way to the servers."""


@dataclass(frozen=True)
class Plan:
    """Who sends which range to whom, when: a reduction, or the broadcast that mirrors it."""

    members: tuple[str, ...]
    """Names by rank; the first has the result of a reduction, or what is broadcast."""
    steps: tuple[tuple[int, ...], ...]
    """(stage, from, to, start, stop), ranks and a range of the flat vector; then, unless these are 1 and 0,
    whether it is added, and the number of the network."""


@dataclass(frozen=True)
class Fetch:
    """A vector that a worker needs."""

    name: str
    plan: Plan | None
    """The broadcast that brings it; None where it is pulled from the servers."""


@dataclass(frozen=True)
class Open:
    """An evaluation begins on the shards, after the round's commands."""

    evaluation: int
    at: str
    """The vector that workers pull."""
    gradient: bool
    """Whether sums will come."""
    tree: bool
    """Whether sums are nodes, added along the tree; otherwise in the order of the log."""


@dataclass(frozen=True)
class Close:
    """An evaluation ends on the shards, before the round's commands."""

    evaluation: int
    log: tuple[SumName, ...]
    """Every sum that counts, in the order of their acceptance; others are dropped."""
    scale: float
    """What the sum is multiplied by: one over the samples."""
    gradient: str | None
    """The vector that it becomes; None where it is thrown away."""


# --- a worker to the coordinator ---


@dataclass(frozen=True)
class Join:
    """A worker is there and has made its work; it waits for `Welcome`."""

    name: str
    """Of the process, never used again by another."""
    attempt: int
    """Counts its joins; a higher one ends the session of the lower."""
    address: str
    """Where its peers and the coordinator reach it."""
    patterns: int
    """How many its work has: all must agree."""
    size: int
    """The length of its parameters: all must agree."""


@dataclass(frozen=True)
class Beat:
    """A worker lives, and has this in hand: what was lost on the way is seen from it and sent again."""

    session: int
    evaluation: int
    """The newest that it has heard of; 0 for none."""
    attempt: int
    """The newest attempt of its `Begin` or `Reduce`."""
    is_ready: bool
    """Whether it has the point."""
    is_flushed: bool
    """Whether it has heard `Flush`."""
    granted: tuple[int, ...]
    """Grants that wait or are being computed."""
    held: tuple[Held, ...]
    """What it has computed, without what it knows was `Heard`."""
    heard: tuple[tuple[int, int], ...]
    """Grants that it has computed and that were heard, but are not settled: (first, last) of each run."""


@dataclass(frozen=True)
class Ready:
    """It has the point of the evaluation, and computes what it is granted."""

    session: int
    evaluation: int
    attempt: int
    digests: tuple[int, ...]
    """Of the point, a shard; empty where none were asked for."""


@dataclass(frozen=True)
class Computed:
    """A portion is computed, and can have the next."""

    session: int
    evaluation: int
    held: Held


@dataclass(frozen=True)
class Failed:
    """A portion cannot be computed; the worker goes on with others."""

    session: int
    evaluation: int
    grant: int
    portion: int
    error: str
    """One sentence."""


@dataclass(frozen=True)
class Pushed:
    """All servers hold a sum."""

    session: int
    evaluation: int
    number: int
    results: tuple[PortionResult, ...]
    """Its portions; empty for a reduction, whose portions the coordinator knows."""
    attempt: int = 0
    """Of the reduction that made it; 0 for a sum of its own."""


@dataclass(frozen=True)
class Aborted:
    """A broadcast or a reduction broke off."""

    session: int
    evaluation: int
    attempt: int
    lost: str
    """The member that could not be reached, or empty."""


@dataclass(frozen=True)
class Leave:
    """It wants to go (a spot notice, a wish of its user): what it holds is settled first, then `Dismiss`."""

    session: int
    reason: str


@dataclass(frozen=True)
class Validated:
    """The means over the held-out patterns."""

    session: int
    number: int
    means: tuple[tuple[str, float], ...] | None
    """None without held-out patterns."""
    error: str | None = None


# --- the coordinator to a worker ---


@dataclass(frozen=True)
class Welcome:
    """A worker's session begins."""

    name: str
    attempt: int
    session: int
    seed: int
    patterns: int
    portion: int
    """Patterns a portion; the last may have fewer. With seed and patterns all that `dealing` needs."""
    tree: bool
    """Whether its sums must be nodes of the tree."""
    pushes: bool
    """Whether its last sums go to the servers by themselves; otherwise it keeps them for a reduction."""
    flush_seconds: float
    """How old a sum becomes before it is pushed unasked."""
    beat_seconds: float
    retry_seconds: float
    shards: tuple[Shard, ...]
    servers: tuple[tuple[str, str], ...]
    """Names and addresses."""
    settings: str
    """JSON for whoever runs the worker."""


@dataclass(frozen=True)
class Begin:
    """An evaluation begins. A higher attempt undoes everything of the lower ones."""

    session: int
    evaluation: int
    attempt: int
    at: str
    gradient: bool
    fetches: tuple[Fetch, ...]
    """Vectors to get first."""
    commands: tuple[Command, ...]
    """To run on the worker's own vectors then, after which it has ``at``."""
    digests: bool
    """Whether `Ready` is to have those of the point."""


@dataclass(frozen=True)
class Grant:
    """A portion to compute."""

    session: int
    evaluation: int
    number: int
    """Counts the session's grants: one that was seen is not computed again."""
    portion: int
    apart: bool
    """Whether it must be a sum of its own, for another has it too."""


@dataclass(frozen=True)
class Apart:
    """Another has this portion too: unless it is summed already, it becomes a sum of its own."""

    session: int
    evaluation: int
    grant: int


@dataclass(frozen=True)
class Flush:
    """What is summed goes to the servers now, and from here on every portion by itself."""

    session: int
    evaluation: int


@dataclass(frozen=True)
class Heard:
    """What a beat held is known, and need not be said again."""

    session: int
    evaluation: int
    grants: tuple[int, ...]


@dataclass(frozen=True)
class Settled:
    """A sum counts, or never will; its numbers are needed no more."""

    session: int
    evaluation: int
    number: int
    accepted: bool


@dataclass(frozen=True)
class Reduce:
    """The sums named are added over the plan's members; the first member pushes the result.

    All keep their own sums until they are settled, and another attempt may follow.
    """

    session: int
    evaluation: int
    attempt: int
    plan: Plan
    numbers: tuple[int, ...]
    """Which of this worker's sums are in it."""
    portions: tuple[tuple[int, ...], ...]
    """What each of them must hold, ascending: a worker whose sum holds another set answers with `Aborted`."""


@dataclass(frozen=True)
class End:
    """An evaluation is over: whatever is left of it is dropped."""

    session: int
    evaluation: int


@dataclass(frozen=True)
class Rejoin:
    """The session is void: whatever is left of it is dropped, and the worker may join again."""

    session: int


@dataclass(frozen=True)
class Dismiss:
    """The worker may go."""

    session: int


@dataclass(frozen=True)
class Validate:
    """Fetch ``at``, and measure the held-out patterns there."""

    session: int
    number: int
    at: str


# --- a worker, or whoever needs a vector, and a server ---


@dataclass(frozen=True)
class Pull:
    """A vector's shards are wanted; answered by `Pulled` once the evaluation is open."""

    session: int
    """Of a worker; 0 for the coordinator."""
    evaluation: int
    """0 for a vector as it is now."""
    name: str
    shards: tuple[int, ...]


@dataclass(frozen=True)
class Pulled:
    """Shards of a vector."""

    session: int
    evaluation: int
    name: str
    server: str
    shards: tuple[int, ...]
    buffers: tuple[object, ...]
    """One a shard."""
    error: str | None = None


@dataclass(frozen=True)
class Push:
    """A sum's shards on one server."""

    session: int
    evaluation: int
    number: int
    node: Node | None
    """Where sums are nodes."""
    portions: tuple[int, ...]
    shards: tuple[int, ...]
    buffers: tuple[object, ...]
    """One a shard."""


@dataclass(frozen=True)
class Kept:
    """A server keeps the sum, until the coordinator accepts it or closes the evaluation."""

    session: int
    evaluation: int
    number: int
    server: str


@dataclass(frozen=True)
class Refused:
    """A server will not keep the sum."""

    session: int
    evaluation: int
    number: int
    server: str
    reason: str


# --- the coordinator and a server ---


@dataclass(frozen=True)
class Round:
    """In this order: close an evaluation, run commands, open one. Done once, however often it comes."""

    number: int
    """Grows by one."""
    close: Close | None
    commands: tuple[Command, ...]
    open: Open | None
    digest: str | None
    """A vector whose digests are wanted, after all this."""


@dataclass(frozen=True)
class Answer:
    """A server has done a round."""

    number: int
    server: str
    shards: tuple[int, ...]
    """Its shards, in their order."""
    dots: tuple[tuple[float, ...], ...]
    """A row a shard: one partial sum a dot."""
    digests: tuple[int, ...]
    """One a shard, or none."""
    error: str | None = None
    """What could not be done; then nothing of the commands that followed was."""


@dataclass(frozen=True)
class Accept:
    """Sums that count may be added up now, and sessions that ended will push no more."""

    evaluation: int
    start: int
    """The place in the evaluation's log of the first of ``log``."""
    log: tuple[SumName, ...]
    ended: tuple[int, ...]


@dataclass(frozen=True)
class Write:
    """A vector's shards are set (the first parameters; a resume). Answered by `Written`."""

    number: int
    name: str
    shards: tuple[int, ...]
    buffers: tuple[object, ...]


@dataclass(frozen=True)
class Written:
    """A server has what was written."""

    number: int
    server: str
    error: str | None = None


FromWorker = Join | Beat | Ready | Computed | Failed | Pushed | Aborted | Leave | Validated
"""A worker to the coordinator."""
ToWorker = (
    Welcome
    | Begin
    | Grant
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
    *(Welcome, Begin, Grant, Apart, Flush, Heard, Settled, Reduce, End, Rejoin, Dismiss, Validate),
    *(Pull, Pulled, Push, Kept, Refused, Round, Answer, Accept, Write, Written),
)
"""Every message; a name says which it is."""
PARTS: tuple[type, ...] = (
    *(SumName, Node, Shard, PortionResult, Held, Plan, Fetch, Open, Close),
    *(Combine, Multiply, Dot, Drop),
)
"""What fields of messages may hold besides plain values."""


@dataclass(frozen=True)
class Send:
    """A message and whom it is for, by name."""

    to: str
    message: Message
