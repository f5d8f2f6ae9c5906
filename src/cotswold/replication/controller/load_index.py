"""Servers ordered by load, over all and per host.

Knows: names, hosts, numbers. Does not know: the unit of load, which servers are alive.

The lists stay sorted: a search reads only a few of their first entries.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from typing import TypeVar

_Item = TypeVar("_Item", tuple[int, str], tuple[int, str, str])


class LoadIndex:
    """Servers that may take more load."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[int, str]] = {}
        self._all: list[tuple[int, str]] = []
        """(load, name); the same for each host."""
        self._on: dict[str, list[tuple[int, str]]] = {}
        self._hosts: list[tuple[int, str, str]] = []
        """(load, name, host) of the least loaded server of each host."""

    def put(self, name: str, host: str, load: int) -> None:
        """Set the load of a server."""
        if self._of.get(name) == (load, host):
            return
        self.remove(name)
        self._of[name] = load, host
        insort(self._all, (load, name))
        own = self._on.setdefault(host, [])
        if own and own[0] > (load, name):
            _take(self._hosts, (*own[0], host))
        if not own or own[0] > (load, name):
            insort(self._hosts, (load, name, host))
        insort(own, (load, name))

    def remove(self, name: str) -> None:
        """Remove a server that may take no more load."""
        known = self._of.pop(name, None)
        if known is None:
            return
        load, host = known
        own = self._on[host]
        _take(self._all, (load, name))
        is_first = own[0] == (load, name)
        _take(own, (load, name))
        if is_first:
            _take(self._hosts, (load, name, host))
            if own:
                insort(self._hosts, (*own[0], host))
        if not own:
            del self._on[host]

    @property
    def ascending(self) -> list[tuple[int, str]]:
        """(load, name) in ascending order."""
        return self._all

    def place(self, hosts: Collection[str], without: Collection[str]) -> str | None:
        """Return the least loaded server outside these hosts, or, if there is none, on any host; never one
        of ``without``."""
        best: tuple[int, str] | None = None
        for load, name, host in self._hosts:
            if best is not None and (load, name) > best:
                break
            if host not in hosts:
                able = next((each for each in self._on[host] if each[1] not in without), None)
                best = able if best is None or (able is not None and able < best) else best
        if best is None:
            best = next((each for each in self._all if each[1] not in without), None)
        return None if best is None else best[1]


def _take(items: list[_Item], item: _Item) -> None:
    place = bisect_left(items, item)
    assert items[place] == item, f"{item} is in its place"
    del items[place]
