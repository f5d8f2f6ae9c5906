"""Updates of a session as their sender numbers them: on every server the same, one under way at a time.

Knows: numbers, markers, which servers have not answered. Does not know: when there is something to push,
pulls, which samples are in hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cotswold.wire import Admitted, Ranges, Send, Update, UpdateRefused


@dataclass(frozen=True)
class Part:
    """What goes to one server: fields of its `Update`."""

    kind: str
    shards: tuple[int, ...]
    examples: tuple[int, ...]
    buffers: tuple[object, ...]
    scale: float = 1.0
    decay: float = 0.0


@dataclass(frozen=True)
class Origin:
    """What an update was computed from."""

    versions: Mapping[int, int] = field(default_factory=dict)
    """Of the shards."""
    rate: int = 0
    """The version of the learning rate."""
    samples: Ranges = ()


_NOTHING = Part("gradient", (), (), ())


@dataclass
class Numbered:
    """The updates of a session."""

    admitted: Admitted
    number: int = 0
    """Of the newest."""
    worked: int = 0
    """Of the newest that was no marker."""
    marked: int = 0
    """The newest checkpoint whose marker was sent."""
    waiting: dict[str, Update] = field(default_factory=dict)
    """The newest, by servers that have not answered."""
    _sent: float = 0.0

    @property
    def is_working(self) -> bool:
        """Whether one is not answered that is no marker."""
        return bool(self.waiting) and self.number == self.worked

    def mark(self, checkpoint: int, now: float) -> list[Send]:
        """The marker of a checkpoint: what comes behind it is in later ones alone."""
        self.marked = checkpoint
        return self._next(None, Origin(), now)

    def push(self, parts: Mapping[str, Part], origin: Origin, now: float) -> list[Send]:
        """To each server its part; without parts it says that nothing is computed from the newest pull."""
        sends = self._next(parts or None, origin, now)
        self.worked = self.number
        return sends

    def again(self, now: float) -> list[Send]:
        """What is not answered, once it is time to send it again."""
        if not self.waiting or now - self._sent < self.admitted.retry_seconds:
            return []
        self._sent = now
        return self._sends()

    def answered(self, server: str, number: int) -> None:
        """A server has applied the update of a number, or need not be sent it again."""
        if number == self.number:
            self.waiting.pop(server, None)

    def refused(self, server: str, refusal: UpdateRefused) -> bool:
        """Whether a server has now refused the newest for ever.

        What may come again does when its time has come; so does what is refused for the session's sake.
        """
        is_lasting = refusal.reason.split()[0] in ("session:", "run:", "expects")
        if refusal.again or is_lasting or refusal.number != self.number or server not in self.waiting:
            return False
        self.answered(server, refusal.number)
        return True

    def _next(self, parts: Mapping[str, Part] | None, origin: Origin, now: float) -> list[Send]:
        assert not self.waiting, "one update at a time"
        self.number, self._sent = self.number + 1, now
        self.waiting = {
            server: self._update(_NOTHING if parts is None else parts[server], origin)
            for server, _ in self.admitted.servers
        }
        return self._sends()

    def _sends(self) -> list[Send]:
        return [Send(server, update) for server, update in self.waiting.items()]

    def _update(self, part: Part, origin: Origin) -> Update:
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
