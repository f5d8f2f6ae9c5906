"""Filter for events of controllers that are new to a run.

Knows: events seen before. Does not know: when controllers are asked.

Each reply of a controller has its last events, each with a number.

    event                                                      new if
    of a controller process seen before                        its number is greater than all before
    of another process, as after a failover of controllers     it differs from the last event of that name
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from cotswold.wire import ClusterEvent, StatusReply

_MAX_REMEMBERED = 1000
"""Entries of each table."""
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class NewEvents:
    """New events of one run."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[tuple[str, int], int] = OrderedDict()
        """The greatest number of each controller process."""
        self._last: OrderedDict[str, str] = OrderedDict()
        """The last sentence of each name."""

    def new(self, status: StatusReply) -> list[ClusterEvent]:
        """The events that are new."""
        process = status.controller, status.process
        before = self._numbers.get(process)
        found = [each for each in status.events if self._is_new(each, before)]
        for each in found:
            _store(self._last, each.name, each.sentence)
        _store(self._numbers, process, max([before or 0, *(each.number for each in status.events)]))
        return found

    def _is_new(self, event: ClusterEvent, before: int | None) -> bool:
        if before is not None:
            return event.number > before
        return self._last.get(event.name) != event.sentence


def _store(table: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > _MAX_REMEMBERED:
        table.popitem(last=False)
