"""The disk's own rate for a process that only reads and writes.

Knows: files as large as the rows of a stack, read and written past the cache by several threads. Does not
know: stacks.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue

import torch

from cotswold.training.parameters.offload import aligned
from cotswold.training.parameters.offload.aligned import AlignedFile
from cotswold.training.parameters.offload.sparse_memory import Arena

THREADS = (1, 2, 4)
"""Numbers of reading threads, and of writing threads, to try; the fastest gives the disk's rate."""
TRIAL_BYTES = 1 << 30
"""Bytes to read, and to write, for each trial."""


class RawDisk:
    """Files of whole pages in a folder, each of which was written once.

    ``threads`` is the number of reading threads, and of writing threads, with the best rate in the trials.
    """

    def __init__(self, folder: Path, file_bytes: int, files: int) -> None:
        self.file_bytes = -(-file_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._paths = [folder / f"raw.{number:05d}" for number in range(files)]
        # the data is in memory before the clock starts, in huge pages like the rows of a stack (small pages
        # split a disk request, at half the rate), and no disk can compress it
        arena = Arena((2 * max(THREADS), aligned.CHUNK_BYTES), torch.uint8)
        self._buffers = [arena.values(row) for row in range(arena.rows)]
        noise = os.urandom(1 << 20) * (aligned.CHUNK_BYTES >> 20)
        for buffer in self._buffers:
            buffer[:] = noise
        for path in self._paths:
            aligned.create(path, b"", self.file_bytes)
        self.threads = 1
        self.seconds(0, files * self.file_bytes)
        least = min(TRIAL_BYTES, files * self.file_bytes)
        taken = {}
        for self.threads in THREADS:
            taken[self.threads] = min(self.seconds(least, least) for _ in range(2))
        self.threads = min(taken, key=lambda threads: taken[threads])

    def seconds(self, read_bytes: int, written_bytes: int) -> float:
        """Return the time to read and write these bytes at once, file after file."""
        half = len(self._paths) // 2  # written files differ from the files being read
        reads, writes = self._parts(read_bytes, 0), self._parts(written_bytes, half)
        start = time.perf_counter()
        with ThreadPoolExecutor(2 * self.threads) as pool:
            done = [
                pool.submit(_through, queue, buffer, flags, pass_)
                for queue, flags, pass_, buffers in (
                    (reads, os.O_RDONLY, AlignedFile.read, self._buffers[: self.threads]),
                    (writes, os.O_WRONLY, AlignedFile.write, self._buffers[-self.threads :]),
                )
                for buffer in buffers
            ]
            for one in done:
                one.result()
        return time.perf_counter() - start

    def remove(self) -> None:
        """Delete the files."""
        for path in self._paths:
            path.unlink(missing_ok=True)

    def _parts(self, total: int, first: int) -> SimpleQueue[tuple[Path, int]]:
        parts: SimpleQueue[tuple[Path, int]] = SimpleQueue()
        for number in range(-(-total // self.file_bytes)):
            path = self._paths[(first + number) % len(self._paths)]
            parts.put((path, min(self.file_bytes, total - number * self.file_bytes)))
        return parts


def _through(
    parts: SimpleQueue[tuple[Path, int]],
    buffer: memoryview,
    flags: int,
    pass_: Callable[[AlignedFile, memoryview, int], None],
) -> None:
    """Read or write files until the queue is empty."""
    while True:
        try:
            path, count = parts.get_nowait()
        except Empty:
            return
        count = -(-count // mmap.PAGESIZE) * mmap.PAGESIZE
        with aligned.open_aligned(path, flags) as file:
            for first in range(0, count, aligned.CHUNK_BYTES):
                pass_(file, buffer[: min(aligned.CHUNK_BYTES, count - first)], first)
