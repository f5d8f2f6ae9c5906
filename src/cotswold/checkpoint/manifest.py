"""The manifest of a checkpoint: a list of its contents, sealed by a checksum.

Knows: its fields, its format, consistency of chunks. Does not know: how chunks are written or read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import prod
from pathlib import Path

import torch

from cotswold.errors import CheckpointError
from cotswold.files import MalformedError, durable_file, read_object, take, write_all
from cotswold.files.checksum import seal
from cotswold.files.untrusted_json import describe_format_error
from cotswold.geometry import Box

_FORMAT = 1
_NAME = "manifest.json"
_STEP_MAX = 1 << 62
_DIMENSIONS_MAX = 64
_VALUES_MAX = 1 << 62
_FILE_NAME = re.compile(r"[0-9]{5,12}\.safetensors")

State = dict[str, object]


@dataclass(frozen=True)
class ChunkRecord:
    """Description of a chunk in the manifest."""

    tensor: str
    dtype: str
    shape: list[int]
    start: list[int]
    stop: list[int]
    file: str
    bytes: int
    crc32: str

    @classmethod
    def read(cls, entry: Mapping[str, object]) -> ChunkRecord:
        """Convert a record from JSON.

        The file must be a name in the folder, the box inside the whole, the values inside the file. Raises
        MalformedError otherwise, and CheckpointError for a type that torch lacks.
        """
        unknown = set(entry) - {each.name for each in fields(cls)}
        if unknown:
            raise MalformedError(f"has an unknown field {min(unknown)[:40]!r} in a chunk")
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
            raise MalformedError(f"has a chunk of {record.tensor[:80]!r} that is not inside the whole")
        if not _FILE_NAME.fullmatch(record.file):
            raise MalformedError(f"names the file {record.file[:80]!r}, which cannot belong to a checkpoint")
        if record.box.size * record.torch_dtype.itemsize > record.bytes:
            raise MalformedError(f"has a chunk of {record.tensor[:80]!r} that is larger than its file")
        return record

    @property
    def box(self) -> Box:
        """Index ranges of the chunk in the whole tensor."""
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


@dataclass(frozen=True)
class Manifest:
    """The contents of a checkpoint; ``identity`` identifies the run."""

    step: int
    identity: str
    state: State
    chunks: tuple[ChunkRecord, ...]

    @property
    def checksum(self) -> str:
        """Checksum of all fields."""
        return seal(self._content(), allow_nan=True)

    def write(self, folder: Path) -> None:
        """Write and sync the manifest; CheckpointError if the chunks do not belong to the same tensors."""
        for name, records in group_by_tensor(self.chunks).items():
            _check_chunks(name, records)
        content = self._content()
        with durable_file(folder / _NAME) as file:
            write_all(
                file, json.dumps({"crc32": seal(content, allow_nan=True), **content}, indent=1).encode()
            )

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest in a folder; CheckpointError if it is damaged or of another format."""
        path = folder / _NAME
        try:
            if folder.is_symlink():
                raise CheckpointError(f"{folder} is a symbolic link, which is not followed")
            content = read_object(path)
            sealed = take(content, "crc32", str)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        except MalformedError as error:
            raise CheckpointError(f"{path} is damaged: it is not a manifest, for it {error}") from error
        del content["crc32"]
        if seal(content, allow_nan=True) != sealed:
            raise CheckpointError(f"{path} is damaged: its checksum does not match")
        if (found := content.get("format")) != _FORMAT:
            raise CheckpointError(f"{path} {describe_format_error(found, _FORMAT)}")
        try:
            manifest = cls._parse(content)
            for name, records in group_by_tensor(manifest.chunks).items():
                _check_chunks(name, records)
        except MalformedError as error:
            raise CheckpointError(f"{path} {error}; another version may have written it") from error
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from error
        return manifest

    @classmethod
    def _parse(cls, content: Mapping[str, object]) -> Manifest:
        """Check and convert the fields; raises MalformedError."""
        step = take(content, "step", int)
        if not 0 <= step <= _STEP_MAX:
            raise MalformedError(f"has the step {str(step)[:20]}")
        entries = take(content, "pieces", list)
        if not all(isinstance(entry, dict) for entry in entries):
            raise MalformedError("has a chunk that is no JSON object")
        chunks = tuple(ChunkRecord.read(entry) for entry in entries)
        return cls(step, take(content, "identity", str), take(content, "state", dict), chunks)

    def _content(self) -> dict[str, object]:
        return {
            "format": _FORMAT,
            "step": self.step,
            "identity": self.identity,
            "state": self.state,
            "pieces": [asdict(each) for each in self.chunks],
        }


def group_by_tensor(chunks: Iterable[ChunkRecord]) -> dict[str, list[ChunkRecord]]:
    """Group the chunks by tensor."""
    found: dict[str, list[ChunkRecord]] = {}
    for record in chunks:
        found.setdefault(record.tensor, []).append(record)
    return found


def _check_chunks(name: str, records: Sequence[ChunkRecord]) -> None:
    """Raise CheckpointError if chunks disagree on the whole, leave a part uncovered, or overlap.

    A tensor that every rank has is written by one of them.
    """
    first = records[0]
    for other in records:
        if (other.shape, other.dtype) != (first.shape, first.dtype):
            raise CheckpointError(
                f"the chunks of tensor {name} belong to different tensors: {first.dtype} {first.shape} in "
                f"{first.file}, {other.dtype} {other.shape} in {other.file}"
            )
    if sum(each.box.size for each in records) < prod(first.shape):
        raise CheckpointError(
            f"the chunks of tensor {name} do not cover {first.shape}; a rank has left out its chunk"
        )
    reached: list[ChunkRecord] = []
    for record in sorted((each for each in records if each.box.size), key=lambda each: each.start):
        # sorted by start, so that chunks which end before this one cannot overlap later ones
        reached = [each for each in reached if not each.start or each.stop[0] > record.start[0]]
        for earlier in reached:
            if earlier.box.intersect(record.box).size:
                raise CheckpointError(
                    f"two chunks of tensor {name} overlap: {earlier.box} in {earlier.file} and {record.box} "
                    f"in {record.file}; let one rank write these values"
                )
        reached.append(record)


def _sizes(entry: Mapping[str, object], name: str) -> list[int]:
    """Return a list of non-negative numbers, within the limits of an array's shape."""
    found = take(entry, name, list)
    if not all(type(each) is int and each >= 0 for each in found):
        raise MalformedError(f"has values other than non-negative integers in the field {name!r}")
    if len(found) > _DIMENSIONS_MAX or prod(max(each, 1) for each in found) > _VALUES_MAX:
        raise MalformedError(f"has a {name} of more values than an array can have")
    return found
