"""Sweeps over the block rows of a stack, with prefetch and background writes.

Knows: the order of rows, how many rows may be prefetched. Does not know: what is computed.

Each sweep reverses the direction of the one before, so that it begins with rows that are still in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cotswold.geometry import BlockLocal
from cotswold.training.parameters.offload.memory_plan import MOMENTUM_ROOM, min_rows
from cotswold.training.parameters.offload.row_cache import RowCache, RowThreads
from cotswold.training.parameters.offload.row_files import RowFiles
from cotswold.training.parameters.offload.row_order import Visit, block_rows


class RowStream:
    """The filters of a stack, and its momentum during training, as streamed rows."""

    def __init__(
        self, layer: BlockLocal, filters: RowFiles, momentum: RowFiles, room: int, threads: RowThreads
    ) -> None:
        self.layer = layer
        self.filters = RowCache(filters, max(room, min_rows(layer)), threads)
        self.momentum = RowCache(momentum, MOMENTUM_ROOM, threads)
        self._descending = False

    def sweep(self, *, before_move: bool = False) -> Iterator[Visit]:
        """Visit every row once, with its filters in memory; the caller releases each row.

        With ``before_move``, a call of `move` follows, so its first rows of momentum are prefetched.
        """
        visits = self._turn()
        rows = [visit.row for visit in visits]
        moving = rows[::-1] if before_move and self.momentum.files.rows_on_disk else []
        filters, momentum = _PrefetchPosition(self.filters, rows), _PrefetchPosition(self.momentum, moving)
        for visit in visits:
            while filters.request_next():
                pass
            while filters.is_exhausted and momentum.request_next():
                pass
            filters.take(visit.row)
            yield visit

    def move(self, lag: int) -> Move:
        """Visit every row once, with its filters in memory; its momentum follows ``lag`` rows later."""
        return Move(self, self._turn(), lag)

    def settle(self) -> None:
        """Wait until all changed rows are written."""
        self.filters.settle_all()
        self.momentum.settle_all()

    def _turn(self) -> tuple[Visit, ...]:
        for cache in (self.filters, self.momentum):
            cache.release_unused()
        visits = block_rows(self.layer, self._descending)
        self._descending = not self._descending
        return visits


class Move:
    """A sweep in which rows change."""

    def __init__(self, stream: RowStream, visits: tuple[Visit, ...], lag: int) -> None:
        rows = [visit.row for visit in visits]
        self._visits, self._lag = visits, lag
        self._filters, self._momentum = (
            _PrefetchPosition(stream.filters, rows),
            _PrefetchPosition(stream.momentum, rows),
        )

    def __iter__(self) -> Iterator[Visit]:
        for visit in self._visits:
            self._prefetch()
            self._filters.take(visit.row)
            yield visit

    def take(self, row: int) -> None:
        """Wait until a row may be changed: its momentum is in memory, and its old values are written."""
        self._momentum.take(row)
        for ahead in (self._momentum, self._filters):
            ahead.cache.settle(row)

    def release(self, row: int) -> None:
        """Release a row that has changed."""
        for ahead in (self._filters, self._momentum):
            ahead.cache.release(row, is_changed=True)

    def _prefetch(self) -> None:
        """Prefetch both tensors alternately: readers serve requests in order."""
        filters, momentum = self._filters, self._momentum
        going = True
        while going:
            going = filters.requested <= momentum.requested + self._lag and filters.request_next()
            going = (momentum.requested < filters.requested and momentum.request_next()) or going


class _PrefetchPosition:
    """The prefetch position of a sweep in the rows of a cache."""

    def __init__(self, cache: RowCache, rows: Sequence[int]) -> None:
        self.cache, self.requested, self._rows = cache, 0, rows

    @property
    def is_exhausted(self) -> bool:
        return self.requested == len(self._rows)

    def request_next(self) -> bool:
        """Request the next row; return False if there is none, or no space."""
        if self.is_exhausted or not self.cache.request(self._rows[self.requested]):
            return False
        self.requested += 1
        return True

    def take(self, row: int) -> None:
        """Wait for a row; rows are used in order."""
        self.cache.take(row)
        self.requested = max(self.requested, self._rows.index(row) + 1)
