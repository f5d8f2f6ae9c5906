"""One chunk of a tensor in one safetensors file.

Knows: the safetensors format, checksums, streaming. Does not know: which chunks make a checkpoint. This
module writes the format itself, a header before raw values, because the safetensors library first builds
every file in memory, and the largest tensor of coates2013-11b has 27.5 GB. The library reads these files
(tested).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import FileIO
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotswold.checkpoint.manifest import ChunkRecord
from cotswold.errors import CheckpointError
from cotswold.files import durable_file, open_file, write_all
from cotswold.files.checksum import crc32
from cotswold.geometry import Box

_BUFFER_BYTES = 1 << 24
_HEADER_BYTES_MAX = 1 << 20
_CODES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
"""Types that safetensors supports; other types are stored as bytes."""


@dataclass(frozen=True)
class TensorChunk:
    """A part of a tensor that one rank writes.

    Args:
        name: Name of the tensor.
        tensor: Values of the part.
        box: Index ranges of the part in the whole tensor (default: all).
        shape: Shape of the whole tensor; required if ``box`` is given.

    Raises:
        ValueError: ``box``, ``shape`` and the tensor's shape do not fit.
    """

    name: str
    tensor: Tensor
    box: Box | None = None
    shape: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        own = tuple(self.tensor.shape)
        if (self.box is None) != (self.shape is None):
            raise ValueError(f"a chunk of {self.name} needs both box and shape, or neither")
        if self.box is not None and self.box.shape != own:
            raise ValueError(f"a chunk of {self.name} has shape {own} and box {self.box}")
        if self.box is not None and self.shape is not None and not _is_inside(self.box, self.shape):
            raise ValueError(
                f"a chunk of {self.name} with {self.box} is not inside the whole shape {self.shape}"
            )

    def write(self, folder: Path, file_name: str) -> ChunkRecord:
        """Write and sync the chunk as a new file, and return its record for the manifest.

        Args:
            folder: Folder of the checkpoint.
            file_name: Name of the new file.

        Raises:
            OSError: The file exists or cannot be written.
        """
        return write_chunk(folder, file_name, self)


@dataclass(frozen=True)
class SealedChunk:
    """A chunk in an existing file, in the format of a checkpoint's chunks; the file must not change any more.

    Args:
        path: The file.
        record: The chunk's record for the manifest; its file name is replaced.
    """

    path: Path
    record: ChunkRecord

    def write(self, folder: Path, file_name: str) -> ChunkRecord:
        """Hard-link the file into a folder, and sync it; copied only if the file system has no links.

        Args:
            folder: Folder of the checkpoint.
            file_name: Name of the link.

        Returns:
            The record for the manifest.
        """
        target = folder / file_name
        try:
            target.hardlink_to(self.path)
        except OSError:  # no links on this file system; copying reports any other error
            shutil.copyfile(self.path, target)
        file = os.open(target, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
        return replace(self.record, file=file_name)


def chunk_header(
    name: str, dtype: torch.dtype, shape: tuple[int, ...], alignment: int = 8, place: int = 0
) -> bytes:
    """Return the header of a chunk's file.

    It is padded so that the values start ``place`` bytes after a multiple of ``alignment``.
    """
    code, total = _CODES.get(dtype), prod(shape) * dtype.itemsize
    entry = {"dtype": code or "U8", "shape": shape if code else (total,), "data_offsets": (0, total)}
    header = json.dumps({name: entry}).encode()
    header += b" " * ((place - 8 - len(header)) % alignment)
    return len(header).to_bytes(8, "little") + header


def write_chunk(folder: Path, file_name: str, chunk: TensorChunk) -> ChunkRecord:
    """Write and sync a new file, a few megabytes at a time, for any device and strides."""
    tensor = chunk.tensor.detach()
    own, total = tuple(tensor.shape), tensor.numel() * tensor.element_size()
    prefix = chunk_header(chunk.name, tensor.dtype, own)
    checksum = crc32(prefix)
    with durable_file(folder / file_name) as file:
        write_all(file, prefix)
        for buffer in _buffers(tensor) if _is_contiguous_cpu(tensor) else _gather_buffers(tensor):
            write_all(file, buffer)
            checksum = crc32(buffer, checksum)
    box = chunk.box or Box.whole(own)
    return ChunkRecord(
        tensor=chunk.name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=list(chunk.shape if chunk.shape is not None else own),
        start=list(box.start),
        stop=list(box.stop),
        file=file_name,
        bytes=len(prefix) + total,
        crc32=f"{checksum:08x}",
    )


def read_chunk(folder: Path, record: ChunkRecord, box: Box, target: Tensor) -> None:
    """Fill ``target``, of the box's shape and the chunk's type, with the values in a box of the chunk.

    The box has the whole tensor's indices. The file is read once, a few megabytes at a time. Raises
    CheckpointError if the file is not as written.
    """
    path = folder / record.file
    direct = box == record.box and _is_contiguous_cpu(target)
    with _open_chunk_file(path) as file:
        prefix = file.read(8)
        length = int.from_bytes(prefix, "little")
        if length > _HEADER_BYTES_MAX:
            raise CheckpointError(f"{path} is damaged: it does not begin as a safetensors file")
        checksum = crc32(file.read(length), crc32(prefix))
        count = 8 + length
        for buffer in _buffers(target) if direct else _scatter_buffers(record.box, box, target):
            filled = _read_into(file, buffer)
            checksum = crc32(buffer[:filled], checksum)
            count += filled
    _check_file(path, record, count, checksum)


def verify_chunk(folder: Path, record: ChunkRecord) -> None:
    """Raise CheckpointError if the file is missing, shorter, longer or not as written."""
    path = folder / record.file
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    checksum = count = 0
    with _open_chunk_file(path) as file:
        while filled := _read_into(file, buffer):
            checksum = crc32(buffer[:filled], checksum)
            count += filled
    _check_file(path, record, count, checksum)


@contextmanager
def _open_chunk_file(path: Path) -> Iterator[FileIO]:
    try:
        with FileIO(open_file(path, os.O_RDONLY)) as file:
            yield file
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _read_into(file: FileIO, buffer: memoryview) -> int:
    """Fill the buffer and return the number of bytes read, which is smaller at the end of the file."""
    filled = 0
    while count := file.readinto(buffer[filled:]):
        filled += count
    return filled


def _check_file(path: Path, record: ChunkRecord, count: int, checksum: int) -> None:
    if count != record.bytes:
        raise CheckpointError(f"{path} is damaged: {count} bytes long instead of {record.bytes}")
    if f"{checksum:08x}" != record.crc32:
        raise CheckpointError(f"{path} is damaged: its checksum is not the one in the manifest")


def _is_inside(box: Box, shape: tuple[int, ...]) -> bool:
    return len(box.start) == len(shape) and Box.whole(shape).contains(box)


def _is_contiguous_cpu(tensor: Tensor) -> bool:
    """True if the values have the same layout in this process's memory as in a file."""
    return (
        tensor.is_contiguous()
        and tensor.device.type == "cpu"
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _buffers(tensor: Tensor) -> Iterator[memoryview]:
    """Views of the bytes of a plain tensor; writing to them changes the tensor."""
    # `reshape` would keep the arbitrary stride of a single value.
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    step = _BUFFER_BYTES // flat.element_size()
    for start in range(0, flat.numel(), step):
        yield _bytes(flat[start : start + step])


def _gather_buffers(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of any tensor in the order of a file, copied through one buffer."""
    step = _BUFFER_BYTES // tensor.element_size()
    buffer = torch.empty(min(step, tensor.numel()), dtype=tensor.dtype)
    for start in range(0, tensor.numel(), step):
        stop = min(start + step, tensor.numel())
        at = 0
        for box in contiguous_boxes(tuple(tensor.shape), start, stop):
            buffer[at : at + box.size].view(box.shape).copy_(tensor[box.slices])
            at += box.size
        yield _bytes(buffer[:at])


def _scatter_buffers(chunk: Box, box: Box, target: Tensor) -> Iterator[memoryview]:
    """Yield buffers for the bytes of a chunk, one buffer at a time, and copy their values to the target.

    Only values inside the box are copied.
    """
    step = _BUFFER_BYTES // target.element_size()
    buffer = torch.empty(min(step, chunk.size), dtype=target.dtype)
    wanted = _relative_to(chunk, box)
    for start in range(0, chunk.size, step):
        stop = min(start + step, chunk.size)
        yield _bytes(buffer[: stop - start])
        at = 0
        for stretch in contiguous_boxes(chunk.shape, start, stop):
            common = stretch.intersect(wanted)
            if common.size:
                values = buffer[at : at + stretch.size].view(stretch.shape)
                with torch.no_grad():
                    to = target[_relative_to(wanted, common).slices]
                    to.copy_(values[_relative_to(stretch, common).slices])
            at += stretch.size


def _relative_to(outer: Box, inner: Box) -> Box:
    """Shift a box so that its indices count from the start of another box."""
    return inner.shift(tuple(-start for start in outer.start))


def _bytes(flat: Tensor) -> memoryview:
    values: NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return values.data


def contiguous_boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    """Yield the boxes whose values, in order, are the flat values ``start`` to ``stop`` of an array.

    There are at most two for each dimension, less one.

    >>> list(contiguous_boxes((3, 4), 2, 9))
    [Box(start=(0, 2), stop=(1, 4)), Box(start=(1, 0), stop=(2, 4)), Box(start=(2, 0), stop=(3, 1))]
    """
    if start >= stop:
        return
    if len(shape) < 2:
        yield Box((start,), (stop,)) if shape else Box((), ())
        return
    row = prod(shape[1:])
    first, last = -(-start // row), stop // row
    if first > last:  # within one row
        yield from _boxes_in_row(first - 1, shape, start, stop)
        return
    yield from _boxes_in_row(first - 1, shape, start, first * row)
    if first < last:
        yield Box((first, *(0 for _ in shape[1:])), (last, *shape[1:]))
    yield from _boxes_in_row(last, shape, last * row, stop)


def _boxes_in_row(index: int, shape: tuple[int, ...], start: int, stop: int) -> Iterator[Box]:
    """Yield the boxes of a range that is inside ``[index]`` of the array."""
    row = prod(shape[1:])
    for box in contiguous_boxes(shape[1:], start - index * row, stop - index * row):
        yield Box((index, *box.start), (index + 1, *box.stop))
