"""Used bytes of each file of contents, and the file to compact next.

Knows: heads, bytes per file. Does not know: files, when anything is written.

Blocks of a model in training are rewritten again and again, so most files soon have no live block. If some
blocks do not change, the file with the smallest live fraction is compacted: its live blocks are appended with
the next write. So a store has at most about twice the bytes of its blocks, and a few files more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from cotswold.replication.disk.records import BlockKey, Head


class SpaceUsage:
    """Space accounting of one store."""

    def __init__(self, heads: Iterable[Head], slack_bytes: int) -> None:
        """``slack_bytes``: unused bytes that are always allowed."""
        self._slack_bytes = slack_bytes
        self._used: Counter[int] = Counter()
        for each in heads:
            self._count(each, 1)

    @property
    def used_segments(self) -> Collection[int]:
        """Files with live blocks."""
        return (+self._used).keys()

    def replace_head(self, old: Head | None, new: Head | None) -> None:
        """Record that a bucket's head was replaced or removed."""
        if new is not None:
            self._count(new, 1)
        if old is not None:
            self._count(old, -1)

    def segment_to_compact(self, bytes_of: Mapping[int, int], current: int | None) -> int | None:
        """Return the file to compact; None while there is little unused space. ``bytes_of``: size of each
        file."""
        total, needed = sum(bytes_of.values()), self._used.total()
        if total <= 2 * needed + self._slack_bytes:
            return None
        shares = {
            number: self._used[number] / max(1, count)
            for number, count in bytes_of.items()
            if number != current
        }
        return min(shares, key=shares.__getitem__, default=None)

    def _count(self, head: Head, by: int) -> None:
        for each in head.blocks.values():
            self._used[each.segment] += by * each.stored


def blocks_in(segment: int, heads: Mapping[str, Head]) -> list[tuple[str, BlockKey]]:
    """Return the live blocks of a file."""
    return [
        (bucket, key)
        for bucket, head in heads.items()
        for key, each in head.blocks.items()
        if each.segment == segment
    ]
