"""The rows of a tensor, each in a file of its own, in the format of a checkpoint's chunks.

Knows: names, checksums, which files a checkpoint shares. Does not know: when a row is read or written.

Two generations: a file that a checkpoint has linked is never written to again; the row's next values go to a
new file. A file that no checkpoint has is overwritten in place. So whatever is killed, the rows of the last
checkpoint are whole, and its manifest, which is renamed into place, says which they are.
"""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

from cotswold.checkpoint import Checkpoint, SealedChunk
from cotswold.checkpoint.chunk_file import chunk_header
from cotswold.checkpoint.manifest import ChunkRecord
from cotswold.errors import CheckpointError, MachineError
from cotswold.files.checksum import crc32
from cotswold.files.durable import disk_errors
from cotswold.geometry import Box
from cotswold.training.parameters.offload import aligned
from cotswold.training.parameters.offload.sparse_memory import PAGE, Arena

_REMEDY = "go on from the last checkpoint: cotswold train --resume"


class RowFiles:
    """The rows of the tensor ``name`` in a folder; those in memory are in the arena.

    Different rows may be read and written at once by different threads.
    """

    def __init__(self, folder: Path, name: str, arena: Arena) -> None:
        self.folder, self.name, self.arena = folder, name, arena
        self._records: dict[int, ChunkRecord] = {}

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's values."""
        return self.arena.row_bytes

    @property
    def written(self) -> int:
        """How many rows there are on the disk."""
        return len(self._records)

    def read(self, row: int) -> None:
        """Bring a row into memory; raises MachineError where the file is not what was written."""
        path, values = self._path(row), self.arena.values(row)
        prefix = bytearray(len(self._prefix(row)))
        try:
            with aligned.opened(path, os.O_RDONLY) as file:
                file.read(memoryview(prefix), 0)
                checksum = crc32(prefix)
                for first in range(0, values.nbytes, aligned.CHUNK_BYTES):
                    chunk = values[first : first + aligned.CHUNK_BYTES]
                    file.read(chunk, len(prefix) + first)
                    checksum = crc32(chunk, checksum)
        except (OSError, EOFError) as error:
            raise MachineError(f"{path} cannot be read ({error}); {_REMEDY}") from error
        if f"{checksum:08x}" != self._records[row].crc32:
            raise MachineError(f"{path} is damaged: its checksum is not that of what was written; {_REMEDY}")

    def write(self, row: int) -> None:
        """Write a row from memory, over its file where no checkpoint has it."""
        path, prefix, values = self._path(row), self._prefix(row), self.arena.values(row)
        checksum = crc32(prefix)
        with disk_errors(path, MachineError):
            if not _is_own(path):
                path.unlink(missing_ok=True)
                aligned.create(path, prefix, len(prefix) + values.nbytes)
            with aligned.opened(path, os.O_WRONLY) as file:
                for first in range(0, values.nbytes, aligned.CHUNK_BYTES):
                    chunk = values[first : first + aligned.CHUNK_BYTES]
                    checksum = crc32(chunk, checksum)
                    file.write(chunk, len(prefix) + first)
        self._records[row] = self._record(row, len(prefix) + values.nbytes, f"{checksum:08x}")

    def chunks(self) -> list[SealedChunk]:
        """All rows for a checkpoint; every one of them must have been written."""
        return [SealedChunk(self._path(row), self._records[row]) for row in range(self.arena.rows)]

    def load(self, checkpoint: Checkpoint, at_once: int = 1) -> None:
        """Take all rows from a checkpoint: by links where it was written from such rows, else by copying.

        A copy reads the checkpoint's files once for every so many rows, which are in memory together.
        Raises CheckpointError where the checkpoint has no such tensor.
        """
        expected = {self._key(self._record(row, self._size(row), "")): row for row in range(self.arena.rows)}
        found = {expected.get(self._key(record)): record for record in checkpoint.records(self.name)}
        if None in found or len(found) < self.arena.rows:
            self._copy(checkpoint, at_once)
            return
        with disk_errors(self.folder, CheckpointError):
            for row, record in found.items():
                assert row is not None, "checked above"
                self._path(row).unlink(missing_ok=True)
                SealedChunk(checkpoint.path / record.file, record).write(self.folder, self._path(row).name)
                self._records[row] = record

    def remove(self) -> None:
        """Delete the files and forget the rows."""
        for row in range(self.arena.rows):
            self._path(row).unlink(missing_ok=True)
        self._records.clear()

    def _copy(self, checkpoint: Checkpoint, at_once: int) -> None:
        shape = tuple(self.arena.tensor.shape)
        for first in range(0, self.arena.rows, at_once):
            rows = range(first, min(first + at_once, self.arena.rows))
            box = Box((rows.start, *(0 for _ in shape[1:])), (rows.stop, *shape[1:]))
            checkpoint.read_into(self.name, self.arena.tensor[rows.start : rows.stop], box)
            for row in rows:
                self.write(row)
                self.arena.drop(row)

    def _path(self, row: int) -> Path:
        return self.folder / f"{self.name}.{row:05d}.safetensors"

    def _prefix(self, row: int) -> bytes:
        shape = (1, *self.arena.tensor.shape[1:])
        return chunk_header(self.name, self.arena.tensor.dtype, shape, PAGE, self.arena.place(row))

    def _size(self, row: int) -> int:
        return len(self._prefix(row)) + self.arena.row_bytes

    def _record(self, row: int, size: int, checksum: str) -> ChunkRecord:
        shape = list(self.arena.tensor.shape)
        return ChunkRecord(
            tensor=self.name,
            dtype=str(self.arena.tensor.dtype).removeprefix("torch."),
            shape=shape,
            start=[row, *(0 for _ in shape[1:])],
            stop=[row + 1, *shape[1:]],
            file="",
            bytes=size,
            crc32=checksum,
        )

    def _key(self, record: ChunkRecord) -> str:
        return repr(replace(record, file="", crc32=""))


def _is_own(path: Path) -> bool:
    """Whether a file is there that no checkpoint has."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1
