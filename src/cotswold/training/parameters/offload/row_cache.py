"""The cache of a tensor's rows: which are in memory, being read, or being written.

Knows: the number of rows that fit. Does not know: how rows are used, in which order.

Only the computing thread requests and releases rows; threads of a pool read ahead and write behind.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType

from cotswold.training.parameters.offload.row_files import RowFiles

READERS, WRITERS = 3, 2
"""While one reader waits for the kernel to clear memory, or one writer computes a checksum, the others
keep the disk busy.
"""


class RowThreads:
    """The threads that read and write rows."""

    def __init__(self) -> None:
        self.readers = ThreadPoolExecutor(READERS, "cotswold-read")
        self.writers = ThreadPoolExecutor(WRITERS, "cotswold-write")

    def __enter__(self) -> RowThreads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in (self.readers, self.writers):
            pool.shutdown(cancel_futures=True)


class RowCache:
    """A cache for a limited number of rows; a released row stays until its space is needed."""

    def __init__(self, files: RowFiles, capacity: int, threads: RowThreads) -> None:
        self.files, self.capacity, self._threads = files, capacity, threads
        self._loads: dict[int, Future[None]] = {}
        self._writes: dict[int, Future[None]] = {}
        self._idle: dict[int, None] = {}
        """Unused rows, least recently released first."""

    def request(self, row: int) -> bool:
        """Begin to read a row and hold it; return False if no space is free yet."""
        if row not in self._loads:
            if len(self._loads) >= self.capacity and not self._make_room():
                return False
            self._loads[row] = self._threads.readers.submit(self.files.read, row)
        self._idle.pop(row, None)
        return True

    def take(self, row: int) -> None:
        """Wait until a row is in memory and hold it until it is released; raises the error of the reader."""
        while not self.request(row):
            self._wait_for_room()
        self._loads[row].result()

    def settle(self, row: int) -> None:
        """Wait until a row's last values are written, so that the row may be changed."""
        write = self._writes.pop(row, None)
        if write is not None:
            write.result()

    def release(self, row: int, *, is_changed: bool) -> None:
        """Release a row; a changed row is written in the background."""
        self._idle[row] = None
        if is_changed:
            self._writes[row] = self._threads.writers.submit(self.files.write, row)

    def fill(self, row: int) -> None:
        """Hold a row that will be overwritten entirely, without reading it."""
        self.settle(row)
        while row not in self._loads and len(self._loads) >= self.capacity and not self._make_room():
            self._wait_for_room()
        done: Future[None] = Future()
        done.set_result(None)
        self._loads[row] = done
        self._idle.pop(row, None)

    def release_unused(self) -> None:
        """Release rows that were requested and not used; they stay until their space is needed."""
        for row in self._loads:
            self._idle.setdefault(row)

    def settle_all(self) -> None:
        """Wait until all rows are written; raises the error of a writer."""
        for row in list(self._writes):
            self.settle(row)

    def clear(self) -> None:
        """Drop all rows after they are written."""
        self.settle_all()
        wait(list(self._loads.values()))
        for row in self._loads:
            self.files.arena.drop(row)
        self._loads.clear()
        self._idle.clear()

    def _make_room(self) -> bool:
        """Drop the least recently released row that has been written; return False if there is none."""
        for row in self._idle:
            write = self._writes.get(row)
            if self._loads[row].done() and (write is None or write.done()):
                self.settle(row)
                del self._idle[row], self._loads[row]
                self.files.arena.drop(row)
                return True
        return False

    def _wait_for_room(self) -> None:
        coming = [future for row in self._idle for future in (self._loads[row], self._writes.get(row))]
        under_way = [future for future in coming if future is not None and not future.done()]
        assert under_way or self._idle, f"no room for a row: all {self.capacity} are held"
        wait(under_way, return_when="FIRST_COMPLETED")
