"""Filter for events of controllers that are new to a run.

Knows: events seen before. Does not know: when controllers are asked.

Each reply of a controller has its last events, each with a number.

    event                                                      new if
    of a controller process seen before                        its number is greater than all before
    of another process, as after a failover of controllers     it differs from the last event of that name
    without a number, of an older release                      unseen, or a second later than the last one
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from cotswold.wire import EventSeen, Looked

_KEPT = 1000
"""Maximum entries of each table."""
_APART_SECONDS = 1.0
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class News:
    """New events of one run."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[tuple[str, int], int] = OrderedDict()
        """The greatest number of each controller process."""
        self._when: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Time of the last event of each name and sentence."""
        self._last: OrderedDict[str, str] = OrderedDict()
        """The last sentence of each name."""

    def new(self, looked: Looked, now: float) -> list[EventSeen]:
        """Return the new events."""
        process = looked.controller, looked.process
        before = self._numbers.get(process)
        found = [each for each in looked.events if self._is_new(each, before, now)]
        for each in found:
            _put(self._when, (each.name, each.sentence), now - each.seconds)
            _put(self._last, each.name, each.sentence)
        _put(self._numbers, process, max([before or 0, *(each.number for each in looked.events)]))
        return found

    def _is_new(self, event: EventSeen, before: int | None, now: float) -> bool:
        if event.number and before is not None:
            return event.number > before
        if event.number:
            return self._last.get(event.name) != event.sentence
        when = self._when.get((event.name, event.sentence))
        return when is None or now - event.seconds > when + _APART_SECONDS


def _put(table: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > _KEPT:
        table.popitem(last=False)
