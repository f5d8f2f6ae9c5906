"""State of a replica within a session, and its steps: intervals, tasks, assigned samples, accumulated steps.

Knows: the fields and their limits. Does not know: when a replica steps, pushes and pulls
(`paramserver.core.replica`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cotswold.paramserver.core.update_sequence import ServerUpdate, UpdateSequence
from cotswold.wire import PulledNewer, PullNewer, Ranges, ReplicaInstructions, SessionOpened


@dataclass(frozen=True)
class Pace:
    """Intervals of pulls and pushes (Dean et al. 2012, section 4.1)."""

    batch: int
    """Samples per step; the last step of an assignment may have fewer."""
    n_fetch: int = 1
    """Steps between pulls."""
    n_push: int = 1
    """Steps accumulated per push."""
    overlap: bool = True
    """True if steps continue during pushes and pulls. If False, the replica's own staleness is 0, and servers
    know the versions from which it computes."""
    applies_locally: bool = False
    """True if the replica applies steps to its own copy and pushes the result. Steps that a pull does not
    include stay in the copy. To know these steps, a pull waits until the previous push is applied."""
    stretch: int = 1
    """Maximum multiple of `n_push` steps in a push while the previous one is unanswered, for example during a
    failover. Only with overlap."""

    def __post_init__(self) -> None:
        for name in ("batch", "n_fetch", "n_push", "stretch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.overlap and self.n_fetch > self.n_push:
            raise ValueError(
                "without overlap, n_fetch must be at most n_push, because each push is computed from a pull"
            )


@dataclass(frozen=True)
class StepTask:
    """Install newer shards, compute the gradient of the samples and add it to the accumulation."""

    installs: list[PulledNewer]
    """Pulled shards to install. The caller clears the list after installing, which releases the receive
    buffers."""
    samples: tuple[int, int]
    """Positions from start to before stop."""
    rate: float
    """Learning rate, for a replica that applies its own steps."""
    opens: bool
    """True if this step opens a new accumulation."""
    closes: bool
    """True if the accumulation is pushed after this step, unless `Replica.can_extend`."""
    pull: tuple[int, int]
    """(session, number) of the last requested pull, to which ``installs`` belong."""
    missing_accumulations: int
    """Number of closed accumulations that this pull does not include."""


class SampleAssignment(NamedTuple):
    """Assigned samples that no step has processed: positions from start to before stop."""

    start: int
    stop: int
    is_exclusive: bool
    """True if a push must not mix samples of this assignment with others."""


@dataclass
class StepAccumulation:
    """Steps since the last push."""

    versions: dict[int, int]
    """Versions of the shards when it was opened."""
    rate: int
    steps: int = 0
    samples: Ranges = ()
    is_exclusive: bool = False
    """True if its samples belong to an assignment that is pushed alone."""
    ends_assignment: bool = False
    """True if its newest step is the last of an assignment."""
    parts: Mapping[str, ServerUpdate] = field(default_factory=dict)
    """Parts by server, once it is closed."""


@dataclass
class ReplicaSession:
    """State of a replica within a session."""

    admitted: SessionOpened
    updates: UpdateSequence
    """Update sequence of the session."""
    versions: dict[int, int]
    """Version of each shard, installed or waiting to be installed; -1 for none."""
    assignments: list[SampleAssignment] = field(default_factory=list)
    newest_assignment: int = 0
    instructions: ReplicaInstructions | None = None
    pulling: dict[str, PullNewer] = field(default_factory=dict)
    """Unanswered pulls by server."""
    pull_sent_at: float = 0.0
    pulls: int = 0
    """Number of requested pulls."""
    applied_count: int = 0
    """Number of accumulations applied when the newest pull was requested."""
    installs: list[PulledNewer] = field(default_factory=list)
    steps_since_pull: int = 0
    """Steps since the last pull."""
    must_pull: bool = False
    """True if a pull must arrive before the next step."""
    has_pulled: bool = False
    """True if it has pulled for its next push."""
    accumulation: StepAccumulation | None = None
    closed: StepAccumulation | None = None
    """Closed accumulation that waits for the previous push."""
    closed_count: int = 0
    """Number of closed accumulations."""
    last_beat: float = float("-inf")

    @property
    def pushing(self) -> tuple[str, ...]:
        """Servers that have not answered the newest push."""
        return tuple(self.updates.unanswered)

    @property
    def remaining_samples(self) -> int:
        """Number of assigned samples."""
        return sum(each.stop - each.start for each in self.assignments)
