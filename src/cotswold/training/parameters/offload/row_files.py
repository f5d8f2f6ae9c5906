"""The rows of a tensor, each in a separate file, in the format of checkpoint chunks.

Knows: names, checksums, the files that a checkpoint shares. Does not know: when a row is read or written.

Rows have two generations: a file that a checkpoint has linked is never written again, and the row's next
values go to a new file. A file without a link from a checkpoint is overwritten in place. So after a kill at
any time, the rows of the last checkpoint are complete, and its manifest, which is renamed into place, lists
them.
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

_REMEDY = "resume from the last checkpoint: cotswold train --resume"


class RowFiles:
    """The rows of the tensor ``name`` in a folder; rows in memory are in the arena.

    Different threads may read and write different rows at the same time.
    """

    def __init__(self, folder: Path, name: str, arena: Arena) -> None:
        self.folder, self.name, self.arena = folder, name, arena
        self._records: dict[int, ChunkRecord] = {}

    @property
    def row_bytes(self) -> int:
        """The bytes of a row's values."""
        return self.arena.row_bytes

    @property
    def rows_on_disk(self) -> int:
        """The number of rows on disk."""
        return len(self._records)

    def read(self, row: int) -> None:
        """Read a row into memory; raises MachineError if the file differs from what was written."""
        path, values = self._path(row), self.arena.values(row)
        prefix = bytearray(len(self._prefix(row)))
        try:
            with aligned.open_aligned(path, os.O_RDONLY) as file:
                file.read(memoryview(prefix), 0)
                checksum = crc32(prefix)
                for first in range(0, values.nbytes, aligned.CHUNK_BYTES):
                    chunk = values[first : first + aligned.CHUNK_BYTES]
                    file.read(chunk, len(prefix) + first)
                    checksum = crc32(chunk, checksum)
        except (OSError, EOFError) as error:
            raise MachineError(f"{path} cannot be read ({error}); {_REMEDY}") from error
        if f"{checksum:08x}" != self._records[row].crc32:
            raise MachineError(f"{path} is damaged: its checksum is not that of the written data; {_REMEDY}")

    def write(self, row: int) -> None:
        """Write a row from memory, over its file unless a checkpoint has linked it."""
        path, prefix, values = self._path(row), self._prefix(row), self.arena.values(row)
        checksum = crc32(prefix)
        with disk_errors(path, MachineError):
            if not _is_own(path):
                path.unlink(missing_ok=True)
                aligned.create(path, prefix, len(prefix) + values.nbytes)
            with aligned.open_aligned(path, os.O_WRONLY) as file:
                for first in range(0, values.nbytes, aligned.CHUNK_BYTES):
                    chunk = values[first : first + aligned.CHUNK_BYTES]
                    checksum = crc32(chunk, checksum)
                    file.write(chunk, len(prefix) + first)
        self._records[row] = self._record(row, len(prefix) + values.nbytes, f"{checksum:08x}")

    def chunks(self) -> list[SealedChunk]:
        """Return all rows as chunks of a checkpoint; every row must have been written."""
        return [SealedChunk(self._path(row), self._records[row]) for row in range(self.arena.rows)]

    def load(self, checkpoint: Checkpoint, at_once: int = 1) -> None:
        """Take all rows from a checkpoint: by links if the checkpoint has the same rows, otherwise by
        copying.

        A copy reads the checkpoint's files once for every ``at_once`` rows, which are in memory together.
        Raises CheckpointError if the checkpoint lacks the tensor.
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
        return chunk_header(self.name, self.arena.tensor.dtype, shape, PAGE, self.arena.row_offset(row))

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
    """Return True if a file exists that no checkpoint has linked."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1
