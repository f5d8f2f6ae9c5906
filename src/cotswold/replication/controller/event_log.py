"""Events of servers and buckets: a stream for the log, and the most recent ones for the status.

Knows: events, their times, which of them share a cause. Does not know: the causes.

    event                                               shown
    of a server, a run, a controller                    at once
    of a bucket                                         not yet: others may share its cause
    of other buckets, for the same cause                not yet
    the cause has been quiet, or active for long        one sentence for all of them
    a query about one bucket                            each sentence about it, at once
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from cotswold.replication.controller.event_text import BucketEvent, changes_by_server, summary_text
from cotswold.shards.core.events import Event
from cotswold.wire import ClusterEvent

_MAX_EVENTS = 200
"""Maximum number of events in the status."""
_CHANGES = 5000
"""Maximum number of recorded changes of single buckets."""
_OF_RUNS = ("created", "removed")
"""Kinds of events whose name is a run."""
_QUIET_SECONDS = 1.0
_MAX_DELAY_SECONDS = 5.0


@dataclass
class _Entry:
    """One entry of the status: an event, or many changes of buckets with one cause."""

    started_at: float
    last: float
    event: Event
    number: int = 0
    """Sequence number in the order of display, from 1; 0 before it is shown."""
    changes: list[BucketEvent] = field(default_factory=list)

    def to_event(self, now: float) -> ClusterEvent:
        event, counts = self.event, changes_by_server(self.changes)
        run = self.changes[0].run if self.changes else event.name if event.kind in _OF_RUNS else ""
        return ClusterEvent(
            now - self.last, event.kind, event.name, event.sentence, run, tuple(counts.items()), self.number
        )


class ClusterEventLog:
    """Events of one controller."""

    def __init__(self) -> None:
        self._new: list[Event] = []
        self._last: deque[_Entry] = deque(maxlen=_MAX_EVENTS)
        self._count = 0
        """Number of entries shown so far."""
        self._open: dict[tuple[str, str, str], _Entry] = {}
        """Entries that may still grow, by cause."""
        self._changes: deque[tuple[float, BucketEvent]] = deque(maxlen=_CHANGES)

    def note(self, kind: str, name: str, sentence: str, now: float) -> None:
        """Record an event that is not about a bucket."""
        event = Event(kind, name, sentence)
        self._new.append(event)
        self._report(_Entry(now, now, event))

    def _report(self, told: _Entry) -> None:
        self._count += 1
        told.number = self._count
        self._last.append(told)

    def changed(self, change: BucketEvent, now: float) -> None:
        """Record a new group of a bucket."""
        event = Event(change.kind, change.servers[0], change.sentence)
        self._new.append(event)
        self._changes.append((now, change))
        told = self._open.get(change.cause)
        if told is None:
            self._open[change.cause] = told = _Entry(now, now, event)
        told.last = now
        told.changes.append(change)

    def take_events(self) -> list[Event]:
        """Return the events since the last call, one for each bucket."""
        found, self._new = self._new, []
        return found

    def gathered(self, now: float) -> list[Event]:
        """Return the bucket events of all causes that have been quiet, one sentence per cause, since the
        last call."""
        found = []
        for cause, told in list(self._open.items()):
            if now - told.last >= _QUIET_SECONDS or now - told.started_at >= _MAX_DELAY_SECONDS:
                del self._open[cause]
                name = next(iter(changes_by_server(told.changes)))
                told.event = Event(told.event.kind, name, summary_text(told.changes))
                self._report(told)
                found.append(told.event)
        return found

    def last(self, now: float, bucket: str = "") -> tuple[ClusterEvent, ...]:
        """Return the most recent events, the oldest first; of one bucket, if named."""
        if bucket:
            own = [(when, each) for when, each in self._changes if each.bucket == bucket]
            return tuple(
                _Entry(when, when, Event(each.kind, each.servers[0], each.sentence), changes=[each]).to_event(
                    now
                )
                for when, each in own
            )
        return tuple(each.to_event(now) for each in self._last)
