"""What servers that outlive runs have done since one run began, of what they say of all their time.

Knows: which figures are of a server's whole process. Does not know: who asks, which runs there are.

What such a server says of buckets is of one run already; its processor time, what it took and refused, and
how late its disk ever was are those of its process, which served others before.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import replace

from cotswold.wire.lifecycle import Counts, Unsaved

Counted = tuple[tuple[str, int], ...]
_SERVERS = 1000
"""Servers of which is kept where they began."""


class SinceBegun:
    """For one run: whatever a server says first is where it began."""

    def __init__(self) -> None:
        self._first: OrderedDict[str, Counts] = OrderedDict()
        """The servers heard last, the newest at the end."""
        self._longest: dict[str, float] = {}
        """The longest window of each that was seen."""

    def of(self, counts: Counts) -> Counts:
        """The same, but for what was before."""
        first = self._first.setdefault(counts.server, counts)
        self._first.move_to_end(counts.server)
        if len(self._first) > _SERVERS:
            old, _ = self._first.popitem(last=False)
            self._longest.pop(old, None)
        return replace(
            counts,
            refused=_more(counts.refused, first.refused),
            taken_bytes=counts.taken_bytes - first.taken_bytes,
            applying_seconds=counts.applying_seconds - first.applying_seconds,
            cpu_seconds=counts.cpu_seconds - first.cpu_seconds,
            sent_bytes=_more(counts.sent_bytes, first.sent_bytes),
            unsaved=None if counts.unsaved is None else self._unsaved(counts.server, counts.unsaved, first),
        )

    def _unsaved(self, server: str, unsaved: Unsaved, first: Counts) -> Unsaved:
        before = unsaved.longest_seconds if first.unsaved is None else first.unsaved.longest_seconds
        seen = max(self._longest.get(server, 0.0), unsaved.window_seconds)
        if unsaved.longest_seconds > before:
            seen = max(seen, unsaved.longest_seconds)
        self._longest[server] = seen
        return replace(unsaved, longest_seconds=seen)


def _more(now: Counted, before: Counted) -> Counted:
    """What was counted since, of each that is more."""
    return tuple(sorted((Counter(dict(now)) - Counter(dict(before))).items()))
