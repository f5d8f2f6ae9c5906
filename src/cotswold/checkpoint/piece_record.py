"""The record of one piece in a checkpoint's manifest.

Knows: its fields, and their valid values. Does not know: how pieces are written or read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod

import torch

from cotswold.errors import CheckpointError
from cotswold.files import MalformedError, take
from cotswold.geometry import Box

_DIMENSIONS_MAX = 64
_VALUES_MAX = 1 << 62
_FILE_NAME = re.compile(r"[0-9]{5,12}\.safetensors")


@dataclass(frozen=True)
class PieceRecord:
    """Description of a piece in the manifest."""

    tensor: str
    dtype: str
    shape: list[int]
    start: list[int]
    stop: list[int]
    file: str
    bytes: int
    crc32: str

    @classmethod
    def read(cls, entry: Mapping[str, object]) -> PieceRecord:
        """Convert a record from JSON.

        The file must be a name in the folder, the box inside the whole, the values inside the file. Raises
        MalformedError otherwise, and CheckpointError for a type that torch lacks.
        """
        unknown = set(entry) - {each.name for each in fields(cls)}
        if unknown:
            raise MalformedError(f"has an unknown field {min(unknown)[:40]!r} in a piece")
        record = cls(
            tensor=take(entry, "tensor", str),
            dtype=take(entry, "dtype", str),
            shape=_sizes(entry, "shape"),
            start=_sizes(entry, "start"),
            stop=_sizes(entry, "stop"),
            file=take(entry, "file", str),
            bytes=take(entry, "bytes", int),
            crc32=take(entry, "crc32", str),
        )
        corners = zip(record.start, record.stop, record.shape, strict=False)
        if not len(record.start) == len(record.stop) == len(record.shape) or not all(
            start <= stop <= size for start, stop, size in corners
        ):
            raise MalformedError(f"has a piece of {record.tensor[:80]!r} that is not inside the whole")
        if not _FILE_NAME.fullmatch(record.file):
            raise MalformedError(f"names the file {record.file[:80]!r}, which cannot belong to a checkpoint")
        if record.box.size * record.torch_dtype.itemsize > record.bytes:
            raise MalformedError(f"has a piece of {record.tensor[:80]!r} that is larger than its file")
        return record

    @property
    def box(self) -> Box:
        """Index ranges of the piece in the whole tensor."""
        return Box(tuple(self.start), tuple(self.stop))

    @property
    def torch_dtype(self) -> torch.dtype:
        """Type of the values; CheckpointError if torch has no type of that name."""
        dtype = getattr(torch, self.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise CheckpointError(
                f"tensor {self.tensor} is of type {self.dtype}, which this torch does not support"
            )
        return dtype


def _sizes(entry: Mapping[str, object], name: str) -> list[int]:
    """Return a list of non-negative numbers, within the limits of an array's shape."""
    found = take(entry, name, list)
    if not all(type(each) is int and each >= 0 for each in found):
        raise MalformedError(f"has values other than non-negative integers in the field {name!r}")
    if len(found) > _DIMENSIONS_MAX or prod(max(each, 1) for each in found) > _VALUES_MAX:
        raise MalformedError(f"has a {name} of more values than an array can have")
    return found
