"""What has happened among servers and buckets: for whoever writes it down, and the last for whoever looks.

Knows: events and when they were, which of them have one cause. Does not know: why anything happens.

    what happens                                        what is seen
    something to a server, a run, a controller          that, at once
    something to a bucket                               nothing yet: others may have the same cause
    the same to others, soon after                      nothing yet
    nothing more of that cause for a moment, or there   one sentence about all of them
      were such for long
    somebody asks about one bucket                      each sentence about that, at once
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from cotswold.batch.core.requests import Event
from cotswold.replication.controller.event_text import Change, gathered, servers_of
from cotswold.wire import EventSeen

_KEPT = 200
"""So many are shown to whoever looks."""
_CHANGES = 5000
"""So many changes of single buckets are kept."""
_OF_RUNS = ("created", "removed")
"""Kinds of what happens to a run, which is its name."""
_QUIET_SECONDS = 1.0
_MOST_SECONDS = 5.0


@dataclass
class _Told:
    """Something that is seen as one; many changes of buckets with one cause, or one event."""

    began: float
    last: float
    event: Event
    number: int = 0
    """1, 2, 3, ... in the order in which they are shown; 0 for what is not shown yet."""
    changes: list[Change] = field(default_factory=list)

    def seen(self, now: float) -> EventSeen:
        event, counts = self.event, servers_of(self.changes)
        run = self.changes[0].run if self.changes else event.name if event.kind in _OF_RUNS else ""
        return EventSeen(
            now - self.last, event.kind, event.name, event.sentence, run, tuple(counts.items()), self.number
        )


class Events:
    """Those of one controller."""

    def __init__(self) -> None:
        self._new: list[Event] = []
        self._last: deque[_Told] = deque(maxlen=_KEPT)
        self._count = 0
        """Of all that were shown."""
        self._open: dict[tuple[str, str, str], _Told] = {}
        """Of which more may come, by cause."""
        self._changes: deque[tuple[float, Change]] = deque(maxlen=_CHANGES)

    def note(self, kind: str, name: str, sentence: str, now: float) -> None:
        """Something has happened, to no bucket."""
        event = Event(kind, name, sentence)
        self._new.append(event)
        self._show(_Told(now, now, event))

    def _show(self, told: _Told) -> None:
        self._count += 1
        told.number = self._count
        self._last.append(told)

    def changed(self, change: Change, now: float) -> None:
        """A bucket has another group."""
        event = Event(change.kind, change.servers[0], change.sentence)
        self._new.append(event)
        self._changes.append((now, change))
        told = self._open.get(change.cause)
        if told is None:
            self._open[change.cause] = told = _Told(now, now, event)
        told.last = now
        told.changes.append(change)

    def take(self) -> list[Event]:
        """Those since this was called last, each bucket by itself."""
        found, self._new = self._new, []
        return found

    def gathered(self, now: float) -> list[Event]:
        """What has happened to buckets and is over, since this was called last, a sentence a cause."""
        found = []
        for cause, told in list(self._open.items()):
            if now - told.last >= _QUIET_SECONDS or now - told.began >= _MOST_SECONDS:
                del self._open[cause]
                name = next(iter(servers_of(told.changes)))
                told.event = Event(told.event.kind, name, gathered(told.changes))
                self._show(told)
                found.append(told.event)
        return found

    def last(self, now: float, bucket: str = "") -> tuple[EventSeen, ...]:
        """The last, the oldest first; of one bucket, if one is named."""
        if bucket:
            own = [(when, each) for when, each in self._changes if each.bucket == bucket]
            return tuple(
                _Told(when, when, Event(each.kind, each.servers[0], each.sentence), changes=[each]).seen(now)
                for when, each in own
            )
        return tuple(each.seen(now) for each in self._last)
