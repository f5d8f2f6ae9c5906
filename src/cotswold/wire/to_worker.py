"""What the coordinator says to a worker.

Knows: the fields. Does not know: what is answered.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.optim.vectors.base import Command
from cotswold.wire.types import Fetch, Grant, Plan, Shard


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
class Grants:
    """Portions to compute, in this order."""

    session: int
    evaluation: int
    grants: tuple[Grant, ...]


@dataclass(frozen=True)
class Apart:
    """Another has this portion too: unless it is summed already, it becomes a sum of its own."""

    session: int
    evaluation: int
    grant: int


@dataclass(frozen=True)
class Flush:
    """What is summed goes to the servers now."""

    session: int
    evaluation: int
    lasts: bool
    """Whether every portion does so by itself from here on."""


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
    """The worker may go; or the trainer, or the data server of a pool."""

    session: int
    why: str = ""
    """Why it must; empty where there is no more to say."""


@dataclass(frozen=True)
class Validate:
    """Fetch ``at``, and judge a run of held-out patterns there."""

    session: int
    number: int
    at: str
    run: int
    portions: tuple[tuple[int, int], ...]
    """Start and stop of each, which is a sum of its own."""
