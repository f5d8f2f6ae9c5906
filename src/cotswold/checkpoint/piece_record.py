"""What the manifest of a checkpoint says of one piece.

Knows: its fields, and what cannot be. Does not know: how pieces are written or read.
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
    """What the manifest says of a piece."""

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
        """The record that JSON holds; its file lies in the checkpoint's folder, its box in the whole, its
        values in the file.

        Raises MalformedError for any other, CheckpointError for a type of values that torch does not have.
        """
        unknown = set(entry) - {each.name for each in fields(cls)}
        if unknown:
            raise MalformedError(f"says {min(unknown)[:40]!r} of a piece, which is not known here")
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
            raise MalformedError(f"has a piece of {record.tensor[:80]!r} that is no part of the whole")
        if not _FILE_NAME.fullmatch(record.file):
            raise MalformedError(f"names the file {record.file[:80]!r}, which is none of a checkpoint's")
        if record.box.size * record.torch_dtype.itemsize > record.bytes:
            raise MalformedError(f"has a piece of {record.tensor[:80]!r} that is larger than its file")
        return record

    @property
    def box(self) -> Box:
        """Where the piece lies in the whole."""
        return Box(tuple(self.start), tuple(self.stop))

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of the values; raises CheckpointError if torch has none of that name."""
        dtype = getattr(torch, self.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise CheckpointError(
                f"tensor {self.tensor} is of type {self.dtype}, which this torch does not have"
            )
        return dtype


def _sizes(entry: Mapping[str, object], name: str) -> list[int]:
    """A list of numbers from 0, as few and as small as those of an array."""
    found = take(entry, name, list)
    if not all(type(each) is int and each >= 0 for each in found):
        raise MalformedError(f"has something else than numbers from 0 in the field {name!r}")
    if len(found) > _DIMENSIONS_MAX or prod(max(each, 1) for each in found) > _VALUES_MAX:
        raise MalformedError(f"has a {name} of more values than an array can have")
    return found
