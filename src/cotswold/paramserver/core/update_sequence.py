"""Sequence of a session's updates: the same numbers on every server, one update in flight at a time.

Knows: numbers, markers, the servers that have not answered. Does not know: when an update is due, pulls,
assigned samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cotswold.wire import Ranges, Send, SessionOpened, Update, UpdateRefused


@dataclass(frozen=True)
class ServerUpdate:
    """The part of an update for one server: fields of its `Update`."""

    kind: str
    shards: tuple[int, ...]
    examples: tuple[int, ...]
    buffers: tuple[object, ...]
    scale: float = 1.0
    decay: float = 0.0


@dataclass(frozen=True)
class UpdateSource:
    """Source of an update: versions, learning rate, samples."""

    versions: Mapping[int, int] = field(default_factory=dict)
    """Version of each shard."""
    rate: int = 0
    """Version of the learning rate."""
    samples: Ranges = ()


RETRIED = frozenset({"session", "run", "expects"})
"""Codes of refusals after which the same update is sent again at the usual interval."""

_NOTHING = ServerUpdate("gradient", (), (), ())


@dataclass
class UpdateSequence:
    """Updates of a session."""

    admitted: SessionOpened
    number: int = 0
    """Number of the newest update."""
    worked: int = 0
    """Number of the newest update that was not a marker."""
    marked: int = 0
    """Newest checkpoint whose marker was sent."""
    waiting: dict[str, Update] = field(default_factory=dict)
    """The newest update, by server that has not answered."""
    _sent: float = 0.0

    @property
    def is_working(self) -> bool:
        """True while an update that is not a marker is unanswered."""
        return bool(self.waiting) and self.number == self.worked

    def mark(self, checkpoint: int, now: float) -> list[Send]:
        """Send the marker of a checkpoint: only later checkpoints include the updates behind it."""
        self.marked = checkpoint
        return self._next(None, UpdateSource(), now)

    def push(self, parts: Mapping[str, ServerUpdate], origin: UpdateSource, now: float) -> list[Send]:
        """Send each server its part; without parts, the update only says that no update follows from the
        newest pull."""
        sends = self._next(parts or None, origin, now)
        self.worked = self.number
        return sends

    def again(self, now: float) -> list[Send]:
        """Repeat the unanswered messages if their retry interval has passed."""
        if not self.waiting or now - self._sent < self.admitted.retry_seconds:
            return []
        self._sent = now
        return self._sends()

    def answered(self, server: str, number: int) -> None:
        """Record that a server has applied the update of this number, or needs no repetition."""
        if number == self.number:
            self.waiting.pop(server, None)

    def refused(self, server: str, refusal: UpdateRefused) -> bool:
        """Return True if a server has now permanently refused the newest update.

        Refusals with ``again``, and those that concern the session, are retried at the usual interval.
        """
        is_retried = refusal.again or refusal.code in RETRIED
        if is_retried or refusal.number != self.number or server not in self.waiting:
            return False
        self.answered(server, refusal.number)
        return True

    def _next(self, parts: Mapping[str, ServerUpdate] | None, origin: UpdateSource, now: float) -> list[Send]:
        assert not self.waiting, "one update at a time"
        self.number, self._sent = self.number + 1, now
        self.waiting = {
            server: self._update(_NOTHING if parts is None else parts[server], origin)
            for server, _ in self.admitted.servers
        }
        return self._sends()

    def _sends(self) -> list[Send]:
        return [Send(server, update) for server, update in self.waiting.items()]

    def _update(self, part: ServerUpdate, origin: UpdateSource) -> Update:
        return Update(
            self.admitted.run,
            self.admitted.session,
            self.number,
            part.kind,
            part.shards,
            tuple(origin.versions[number] for number in part.shards),
            origin.rate,
            part.scale,
            origin.samples,
            self.marked,
            part.examples,
            part.buffers,
            part.decay,
        )
