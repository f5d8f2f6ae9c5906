"""What the disk gives to whoever does nothing but read and write.

Knows: files as large as the rows of a stack, read and written past the cache by as many threads as a stack
uses. Does not know: stacks.
"""

from __future__ import annotations

import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cotswold.training.offload import aligned
from cotswold.training.offload.shelf import READERS, WRITERS


class RawDisk:
    """Some files of whole pages in a folder; every one has been written once."""

    def __init__(self, folder: Path, file_bytes: int, files: int) -> None:
        self.file_bytes = -(-file_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._paths = [folder / f"raw.{number:05d}" for number in range(files)]
        for path in self._paths:
            aligned.create(path, b"", self.file_bytes)
        self.seconds(0, files * self.file_bytes)

    def seconds(self, read_bytes: int, written_bytes: int) -> float:
        """How long so many bytes take, in both directions at once, file after file."""
        start = time.perf_counter()
        with ThreadPoolExecutor(READERS) as readers, ThreadPoolExecutor(WRITERS) as writers:
            done = [readers.submit(self._read, *part) for part in self._parts(read_bytes, 0)]
            half = len(self._paths) // 2  # what is written is not what is being read
            done += [writers.submit(self._write, *part) for part in self._parts(written_bytes, half)]
            for one in done:
                one.result()
        return time.perf_counter() - start

    def remove(self) -> None:
        """Delete the files."""
        for path in self._paths:
            path.unlink(missing_ok=True)

    def _parts(self, total: int, first: int) -> list[tuple[Path, int]]:
        count = -(-total // self.file_bytes)
        paths = [self._paths[(first + number) % len(self._paths)] for number in range(count)]
        sizes = [min(self.file_bytes, total - number * self.file_bytes) for number in range(count)]
        return list(zip(paths, sizes, strict=True))

    def _read(self, path: Path, count: int) -> None:
        buffer = mmap.mmap(-1, aligned.CHUNK_BYTES)
        with aligned.opened(path, os.O_RDONLY) as file:
            for first in range(0, count, aligned.CHUNK_BYTES):
                file.read(memoryview(buffer)[: min(aligned.CHUNK_BYTES, self.file_bytes - first)], first)

    def _write(self, path: Path, count: int) -> None:
        buffer = mmap.mmap(-1, aligned.CHUNK_BYTES)
        buffer.write(os.urandom(1 << 20) * (aligned.CHUNK_BYTES >> 20))  # not what a disk could compress
        with aligned.opened(path, os.O_WRONLY) as file:
            for first in range(0, count, aligned.CHUNK_BYTES):
                file.write(memoryview(buffer)[: min(aligned.CHUNK_BYTES, self.file_bytes - first)], first)
