"""The records of an offline run of Weights & Biases."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK = 32768
_HEADER = struct.Struct("<IHB")
"""Checksum, bytes, and kind (1: whole, 2: first, 3: middle, 4: last part of a record), as LevelDB's log."""


def records(path: Path) -> Iterator[Any]:
    """Yield the messages in a file ``run-….wandb``."""
    from wandb.proto import wandb_internal_pb2

    make: Any = getattr(wandb_internal_pb2, "Record")  # noqa: B009  # it has no types

    content, at, part = path.read_bytes(), 7, b""  # after the file's own header
    while at + _HEADER.size <= len(content):
        if _BLOCK - at % _BLOCK < _HEADER.size:
            at += _BLOCK - at % _BLOCK
            continue
        _, size, kind = _HEADER.unpack_from(content, at)
        at += _HEADER.size
        part += content[at : at + size]
        at += size
        if kind in (1, 4):
            record = make()
            record.ParseFromString(part)
            part = b""
            yield record


def history(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a run's history, as JSON texts by key."""
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            yield {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
