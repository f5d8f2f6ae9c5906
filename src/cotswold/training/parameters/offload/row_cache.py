"""Which rows of a tensor are in memory, on their way there, or on their way to the disk.

Knows: how many rows there is room for. Does not know: what is done with a row, in which order.

One thread, that which computes, asks and puts back; reading and writing is done by the threads of a pool,
ahead of it and behind it.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType

from cotswold.training.parameters.offload.row_files import RowFiles

READERS, WRITERS = 3, 2
"""The kernel clears the memory that a reader fills, and a writer computes a checksum: while one is at that
the others keep the disk busy."""


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
    """Room for some rows of a tensor; what is put back stays until its place is needed."""

    def __init__(self, files: RowFiles, room: int, threads: RowThreads) -> None:
        self.files, self.room, self._threads = files, room, threads
        self._loads: dict[int, Future[None]] = {}
        self._writes: dict[int, Future[None]] = {}
        self._idle: dict[int, None] = {}
        """Rows that nobody holds, those that were put back first in front."""

    def ask(self, row: int) -> bool:
        """Begin to bring a row, and hold it; False where there is no room yet."""
        if row not in self._loads:
            if len(self._loads) >= self.room and not self._make_room():
                return False
            self._loads[row] = self._threads.readers.submit(self.files.read, row)
        self._idle.pop(row, None)
        return True

    def take(self, row: int) -> None:
        """Wait until a row is in memory; it is held until it is put back. Raises what reading raised."""
        while not self.ask(row):
            self._wait_for_room()
        self._loads[row].result()

    def settle(self, row: int) -> None:
        """Wait until a row's last values are written, so that it may be changed."""
        write = self._writes.pop(row, None)
        if write is not None:
            write.result()

    def put_back(self, row: int, *, changed: bool) -> None:
        """Let a row go; where it was changed it is written behind."""
        self._idle[row] = None
        if changed:
            self._writes[row] = self._threads.writers.submit(self.files.write, row)

    def fill(self, row: int) -> None:
        """Hold a row that is to be written to as a whole, without reading it."""
        self.settle(row)
        while row not in self._loads and len(self._loads) >= self.room and not self._make_room():
            self._wait_for_room()
        done: Future[None] = Future()
        done.set_result(None)
        self._loads[row] = done
        self._idle.pop(row, None)

    def put_back_all(self) -> None:
        """Let go of rows that were asked for and not taken; they stay until their place is needed."""
        for row in self._loads:
            self._idle.setdefault(row)

    def settle_all(self) -> None:
        """Wait until everything is written; raises what writing raised."""
        for row in list(self._writes):
            self.settle(row)

    def clear(self) -> None:
        """Let go of everything, once it is written."""
        self.settle_all()
        wait(list(self._loads.values()))
        for row in self._loads:
            self.files.arena.drop(row)
        self._loads.clear()
        self._idle.clear()

    def _make_room(self) -> bool:
        """Drop the row that was put back first and is written; False where there is none."""
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
        assert under_way or self._idle, f"no room for a row: all {self.room} are held"
        wait(under_way, return_when="FIRST_COMPLETED")
