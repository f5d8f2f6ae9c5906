"""How much of each file of contents is needed, and which is to be emptied so that its room comes free.

Knows: heads, bytes by file. Does not know: files, when anything is written.

Blocks of a model that is trained are written again and again, so a file soon has nothing that counts.
Where some blocks stay as they are, the file with the fewest of them is emptied: they are written again with
what is written next. So a store has about twice the bytes of its blocks, at most, and a few files more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from cotswold.replication.disk.records import BlockKey, Head


class Usage:
    """That of one store."""

    def __init__(self, heads: Iterable[Head], slack_bytes: int) -> None:
        """``slack_bytes``: so much may be there that nobody needs, whatever is needed."""
        self._slack_bytes = slack_bytes
        self._needed: Counter[int] = Counter()
        for each in heads:
            self._count(each, 1)

    @property
    def needed(self) -> Collection[int]:
        """Files of which something is needed."""
        return (+self._needed).keys()

    def replaced(self, before: Head | None, after: Head | None) -> None:
        """A bucket's head is another, or there is none."""
        if after is not None:
            self._count(after, 1)
        if before is not None:
            self._count(before, -1)

    def to_empty(self, bytes_of: Mapping[int, int], current: int | None) -> int | None:
        """The file that is to be emptied; None while there is room enough. ``bytes_of``: of each file."""
        total, needed = sum(bytes_of.values()), self._needed.total()
        if total <= 2 * needed + self._slack_bytes:
            return None
        shares = {
            number: self._needed[number] / max(1, count)
            for number, count in bytes_of.items()
            if number != current
        }
        return min(shares, key=shares.__getitem__, default=None)

    def _count(self, head: Head, by: int) -> None:
        for each in head.blocks.values():
            self._needed[each.segment] += by * each.stored


def blocks_in(segment: int, heads: Mapping[str, Head]) -> list[tuple[str, BlockKey]]:
    """Which blocks lie in a file."""
    return [
        (bucket, key)
        for bucket, head in heads.items()
        for key, each in head.blocks.items()
        if each.segment == segment
    ]
