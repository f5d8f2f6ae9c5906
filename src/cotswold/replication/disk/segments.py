"""Files of contents, written in sequence and never changed in place: the log of a block store.

Knows: numbered files, the guarantees of a sync, files to overwrite. Does not know: the contents, the
references to them (`block_store`), which files are unused (`space_accounting`).

`append` returns places only once their contents are on disk, so no reference precedes them: data torn by a
crash are never referenced. After a failed write or sync, its state on disk is unknown, and the next write
begins another file. Up to two unused files are kept to be overwritten: their space is already allocated,
which makes a sync cheaper (1.6 times the rate of a growing file, on the machine of
`benchmarks/results/block-store.json`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cotswold.files.durable import sync_folder
from cotswold.replication.disk.records import Buffer, RecordError

SEGMENT_BYTES = 64 << 20
_MAX_SPARE = 2
_ALIGNED = 4096
"""Alignment of each append, so that no page of older contents must be read first."""
_MAX_BUFFERS = 1024
"""Maximum number of buffers per system call."""
_sync = getattr(os, "fdatasync", os.fsync)


class Segments:
    """Files of one store; raises OSError whenever a disk does."""

    def __init__(self, folder: Path, max_bytes: int = SEGMENT_BYTES) -> None:
        """``max_bytes``: size from which on a file is not appended to."""
        self._folder, self._max_bytes = folder, max_bytes
        folder.mkdir(exist_ok=True)
        self._bytes = {
            int(each.name): each.stat().st_size for each in folder.iterdir() if each.name.isdecimal()
        }
        self._spare: list[int] = []
        self._newest = max(self._bytes, default=0)
        self._file: int | None = None
        self._offset = 0

    @property
    def current(self) -> int | None:
        """The file that is appended to, if any."""
        return None if self._file is None else self._newest

    @property
    def sizes(self) -> Mapping[int, int]:
        """Bytes of each file that is in use."""
        return {number: count for number, count in self._bytes.items() if number not in self._spare}

    def room_for(self, count: int) -> int:
        """Return how many of these bytes exceed the allocated space."""
        if self._file is not None and self._offset < self._max_bytes:
            there = self._bytes[self._newest] - self._offset
        else:
            there = self._bytes[self._spare[-1]] if self._spare else 0
        return max(0, count - there)

    def append(self, parts: Sequence[Buffer]) -> list[tuple[int, int]]:
        """Append these in order; on return they are durable. Return file and first byte of each."""
        if self._file is None or self._offset >= self._max_bytes:
            self._begin()
        assert self._file is not None
        starts, at = list[int](), self._offset
        for each in parts:
            starts.append(at)
            at += len(each)
        end = at + -at % _ALIGNED
        try:
            _write([*parts, bytes(end - at)], self._file, self._offset)
            _sync(self._file)
        except BaseException:
            self._close_current()
            raise
        self._offset = end
        self._bytes[self._newest] = max(self._bytes[self._newest], end)
        return [(self._newest, start) for start in starts]

    def read(self, number: int, offset: int, count: int) -> bytes:
        """Return stored bytes, read from the disk even if cached; raises RecordError if they cannot be
        read. No bytes need no file: a file without bytes in use is released."""
        if not count:
            return b""
        try:
            file = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(file, offset, count, os.POSIX_FADV_DONTNEED)
                found = os.pread(file, count, offset)
            finally:
                os.close(file)
        except OSError as error:
            raise RecordError(f"its file {number} cannot be read: {error.strerror}") from error
        if len(found) < count:
            raise RecordError(f"its file {number} is too short")
        return found

    def keep_only(self, numbers: Collection[int]) -> None:
        """Release all other files: no reference to them is left on disk."""
        for number in [each for each in self.sizes if each not in numbers and each != self.current]:
            if len(self._spare) < _MAX_SPARE and self._bytes[number] >= _ALIGNED:
                self._spare.append(number)
            else:
                self._path(number).unlink(missing_ok=True)
                del self._bytes[number]

    def close(self) -> None:
        """Close the file that is appended to."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _begin(self) -> None:
        """Begin another file, durably."""
        self.close()
        number = self._newest + 1
        if self._spare:
            old = self._spare[-1]
            self._path(old).rename(self._path(number))
            self._spare.pop()
            self._bytes[number] = self._bytes.pop(old)
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self._path(number), flags, 0o666)
        self._bytes.setdefault(number, 0)
        self._newest, self._file, self._offset = number, file, 0
        sync_folder(self._folder)

    def _close_current(self) -> None:
        """Cut off what follows the last sync, whose state is unknown, and its space."""
        assert self._file is not None
        with suppress(OSError):
            os.ftruncate(self._file, self._offset)
        self._bytes[self._newest] = self._offset
        self.close()

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}"


def _write(parts: Sequence[Buffer], file: int, at: int) -> None:
    """Write all bytes, in as many system calls as necessary."""
    left = [memoryview(each) for each in parts if len(each)]
    for group in _batches(left):
        while group:
            count = os.pwritev(file, group, at)
            at += count
            group = list(_after(group, count))


def _batches(parts: list[memoryview]) -> Iterator[list[memoryview]]:
    for start in range(0, len(parts), _MAX_BUFFERS):
        yield parts[start : start + _MAX_BUFFERS]


def _after(parts: list[memoryview], count: int) -> Iterator[memoryview]:
    """Yield the rest of some parts after ``count`` bytes."""
    for each in parts:
        if count < each.nbytes:
            yield each[count:]
        count = max(0, count - each.nbytes)
