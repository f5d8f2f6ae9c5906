"""What has happened among servers and buckets: for whoever writes it down, and the last for whoever looks.

Knows: events and when they were. Does not know: why anything happens.
"""

from __future__ import annotations

from collections import deque

from cotswold.server.asked import Event
from cotswold.server.messages import EventSeen

_KEPT = 200
"""So many are shown to whoever looks."""


class Events:
    """Those of one controller."""

    def __init__(self) -> None:
        self._new: list[Event] = []
        self._last: deque[tuple[float, Event]] = deque(maxlen=_KEPT)

    def note(self, kind: str, name: str, sentence: str, now: float) -> None:
        """Something has happened."""
        event = Event(kind, name, sentence)
        self._new.append(event)
        self._last.append((now, event))

    def take(self) -> list[Event]:
        """Those since this was called last."""
        found, self._new = self._new, []
        return found

    def last(self, now: float) -> tuple[EventSeen, ...]:
        """The last, the oldest first."""
        return tuple(
            EventSeen(now - when, event.kind, event.name, event.sentence) for when, event in self._last
        )
