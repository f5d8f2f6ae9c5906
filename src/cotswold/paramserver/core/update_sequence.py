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

_NO_SHARDS = ServerUpdate("gradient", (), (), ())


@dataclass
class UpdateSequence:
    """Updates of a session."""

    admitted: SessionOpened
    number: int = 0
    """Number of the newest update."""
    last_computed: int = 0
    """Number of the newest update that was not a marker."""
    sent_marker: int = 0
    """Newest checkpoint whose marker was sent."""
    unanswered: dict[str, Update] = field(default_factory=dict)
    """The newest update, by server that has not answered."""
    _sent_at: float = 0.0

    @property
    def is_unanswered(self) -> bool:
        """True while an update that is not a marker is unanswered."""
        return bool(self.unanswered) and self.number == self.last_computed

    def mark(self, checkpoint: int, now: float) -> list[Send]:
        """Send the marker of a checkpoint: only later checkpoints include the updates behind it."""
        self.sent_marker = checkpoint
        return self._send_next(None, UpdateSource(), now)

    def push(self, parts: Mapping[str, ServerUpdate], origin: UpdateSource, now: float) -> list[Send]:
        """Send each server its part; without parts, the update only says that no update follows from the
        newest pull."""
        sends = self._send_next(parts or None, origin, now)
        self.last_computed = self.number
        return sends

    def resend(self, now: float) -> list[Send]:
        """Repeat the unanswered messages if their retry interval has passed."""
        if not self.unanswered or now - self._sent_at < self.admitted.retry_seconds:
            return []
        self._sent_at = now
        return self._sends()

    def record_answer(self, server: str, number: int) -> None:
        """Record that a server has applied the update of this number, or needs no repetition."""
        if number == self.number:
            self.unanswered.pop(server, None)

    def record_refusal(self, server: str, refusal: UpdateRefused) -> bool:
        """Return True if a server has now permanently refused the newest update.

        Refusals with ``is_retryable``, and those that concern the session, are retried at the usual interval.
        """
        is_retried = refusal.is_retryable or refusal.code in RETRIED
        if is_retried or refusal.number != self.number or server not in self.unanswered:
            return False
        self.record_answer(server, refusal.number)
        return True

    def _send_next(
        self, parts: Mapping[str, ServerUpdate] | None, origin: UpdateSource, now: float
    ) -> list[Send]:
        assert not self.unanswered, "one update at a time"
        self.number, self._sent_at = self.number + 1, now
        self.unanswered = {
            server: self._update(_NO_SHARDS if parts is None else parts[server], origin)
            for server, _ in self.admitted.servers
        }
        return self._sends()

    def _sends(self) -> list[Send]:
        return [Send(server, update) for server, update in self.unanswered.items()]

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
            self.sent_marker,
            part.examples,
            part.buffers,
            part.decay,
        )
