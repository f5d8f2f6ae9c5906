"""Persistent metadata of a server's shards: versions, sessions, the newest coordinator state, the frozen
state.

Knows: these, and which of them changed since the last query. Does not know: the numbers in shards, the queue,
the other replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic

from cotswold.paramserver.core.sessions import Sessions
from cotswold.shards.core.shard_server import Arithmetic, Values
from cotswold.shards.core.versions import version_after_restarts
from cotswold.wire import CoordinatorState, FrozenPart, PullFrozen, Ranges


@dataclass(frozen=True)
class CheckpointState(Generic[Values]):
    """The shards at a checkpoint: all updates before the markers, and none after them."""

    checkpoint: int
    vectors: Mapping[str, list[Values]]
    """The weights and the state vectors of the rule, in the order of the shards."""
    versions: tuple[int, ...]
    samples: tuple[tuple[int, Ranges, Ranges], ...]
    """(session, applied, permanently refused) of the sessions that were live since the checkpoint began."""


def frozen_part(
    frozen: CheckpointState[Values] | None,
    server: str,
    numbers: Sequence[int],
    pull: PullFrozen,
    arithmetic: Arithmetic[Values],
) -> FrozenPart:
    """Return the reply of ``server``, whose shards are ``numbers``, to a pull of its frozen state."""
    place = {number: place for place, number in enumerate(numbers)}
    if frozen is None or frozen.checkpoint != pull.checkpoint:
        error = f"checkpoint {pull.checkpoint} is not kept"
    elif pull.name not in frozen.vectors:
        error = f"unknown vector {pull.name!r}"
    elif not place.keys() >= set(pull.shards):
        error = f"this server does not have shards {sorted(set(pull.shards) - place.keys())}"
    else:
        return FrozenPart(
            server,
            pull.checkpoint,
            pull.name,
            pull.shards,
            tuple(frozen.versions[place[number]] for number in pull.shards),
            tuple(arithmetic.write(frozen.vectors[pull.name][place[number]]) for number in pull.shards),
        )
    return FrozenPart(server, pull.checkpoint, pull.name, (), (), (), error)


_ANY_SESSION = 1 << 62
"""Greater than the number of any session."""


@dataclass
class MetadataChanges:
    """Changes since the last query."""

    shards: set[int] = field(default_factory=set)
    sessions: set[int] = field(default_factory=set)
    coordinator_state: bool = False
    frozen: bool = False

    def __bool__(self) -> bool:
        return bool(self.shards or self.sessions or self.coordinator_state or self.frozen)


class ShardMetadata(Generic[Values]):
    """Metadata of some shards."""

    def __init__(self, run: str, versions: Mapping[int, int]) -> None:
        self.versions = dict(versions)
        """Number of updates applied to each shard."""
        self.sessions = Sessions(run)
        self.coordinator_state = CoordinatorState(0, (), (), 0, 0)
        self.rates: dict[int, float] = {}
        """Learning rates of the coordinator state, by version."""
        self.frozen: CheckpointState[Values] | None = None
        """State at the newest checkpoint, until the coordinator has taken it."""
        self.checkpoint = 0
        """Newest frozen checkpoint."""
        self.void_sessions = 0
        """Sessions up to this number belong to an earlier incarnation and push nothing more."""
        self.restored = 0
        """Newest coordinator state that the disk knew when this incarnation began."""
        self.incarnation = 0
        """Incarnation of the shards; only the primary knows it."""
        self._changed = MetadataChanges()

    @property
    def changed(self) -> bool:
        """True if anything has changed since `take_changed`."""
        return bool(self._changed or self.sessions.changed)

    def take_changed(self) -> MetadataChanges:
        """Return the changes since the last call."""
        changed, self._changed = self._changed, MetadataChanges()
        changed.sessions = self.sessions.take_changed()
        return changed

    def mark_written(self, shards: Iterable[int]) -> None:
        """Record that numbers of shards were set, not updated."""
        self._changed.shards.update(shards)

    def applied(self, shard: int) -> None:
        """Record one more update of a shard."""
        self.versions[shard] += 1
        self._changed.shards.add(shard)

    def mark_restored(self, incarnations: int) -> None:
        """Mark this state as restored from a disk; ``incarnations`` incarnations have passed."""
        self.versions = {
            number: version_after_restarts(version, incarnations) for number, version in self.versions.items()
        }
        self.void_sessions, self.restored, self._changed.coordinator_state = (
            _ANY_SESSION,
            self.coordinator_state.number,
            True,
        )

    def void_sessions_until(self, named: Iterable[int]) -> None:
        """Void all sessions that the coordinator knew before it learned of the new incarnation."""
        if self.void_sessions == _ANY_SESSION:
            self.void_sessions, self._changed.coordinator_state = max([self.sessions.newest, *named]), True

    def apply_state(self, state: CoordinatorState) -> None:
        """Set the newest coordinator state."""
        self.coordinator_state, self.rates = state, dict(state.rates)
        self._changed.coordinator_state = True
        if self.frozen is not None and self.frozen.checkpoint <= state.released_checkpoint:
            self.frozen = None
            self._changed.frozen = True

    def recorded_at(self, checkpoint: int) -> Ranges:
        """Return the positions that the coordinator knew when this checkpoint began; empty for another
        checkpoint."""
        return (
            self.coordinator_state.recorded_at_checkpoint
            if self.coordinator_state.checkpoint == checkpoint
            else ()
        )

    def freeze(self, frozen: CheckpointState[Values]) -> None:
        """Keep the state of a checkpoint whose markers have all arrived."""
        self.frozen, self.checkpoint = frozen, frozen.checkpoint
        self._changed.frozen = True
