"""Servers in the order of how much they have, all of them and those of each host.

Knows: names, hosts, numbers. Does not know: what is counted, who lives.

The lists are kept in order: a place is found by looking at a few of their first, whatever their length.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from typing import TypeVar

_Item = TypeVar("_Item", tuple[int, str], tuple[int, str, str])


class Loads:
    """Those that may have more."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[int, str]] = {}
        self._all: list[tuple[int, str]] = []
        """(load, name); likewise those of each host."""
        self._on: dict[str, list[tuple[int, str]]] = {}
        self._hosts: list[tuple[int, str, str]] = []
        """(load, name, host) of whoever has the least on each host."""

    def put(self, name: str, host: str, load: int) -> None:
        """A server has so much."""
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
        """A server may have no more."""
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
        """(load, name), the least first."""
        return self._all

    def place(self, hosts: Collection[str], without: Collection[str]) -> str | None:
        """Whoever has the least on another host than these; where there is none, on any; and none of
        ``without``."""
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
