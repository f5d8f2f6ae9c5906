"""The manifest of a store: what is in it, and a checksum of every chunk.

Knows: JSON files written whole or not at all. Does not know: zarr, pictures.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zlib_ng.zlib_ng import crc32

from cotswold.errors import DiskFullError, StoreError

MANIFEST = "manifest.json"
FOLDER = ".preparing"
"""Inside a store while it is being prepared: what an interrupted run needs to go on."""
FORMAT = "cotswold store 1"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_READ_BYTES = 1 << 20

Chunk = tuple[int, int]
"""Bytes and CRC-32 of a chunk's file."""


@contextlib.contextmanager
def disk_full_named(path: Path) -> Iterator[None]:
    """Turn the operating system's "no space left" into DiskFullError, which says how to go on."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise DiskFullError(
            f"no room to write {path} ({error.strerror}); free some and run the same command again to go on"
        ) from error


def write_json(path: Path, content: Any) -> None:
    """Write beside, sync, rename. Raises DiskFullError."""
    beside = path.with_name(path.name + ".partial")
    with disk_full_named(path):
        with beside.open("w") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)


def checksum(content: dict[str, Any]) -> str:
    """SHA-256 of a manifest without its own checksum: the identity of a store."""
    rest = {key: value for key, value in content.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_manifest(store: Path) -> dict[str, Any]:
    """The manifest of a finished store. Raises StoreError where it is missing, damaged or of another
    version."""
    path = store / MANIFEST
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise StoreError(
            f"{store} is not a finished store: it has no {MANIFEST}; run `cotswold prepare`"
        ) from error
    except (ValueError, OSError) as error:
        raise StoreError(f"{path} cannot be read ({error}); prepare the store anew") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise StoreError(f"{path} is not a manifest of a {FORMAT}; prepare the store anew")
    if content.get("checksum") != checksum(content):
        raise StoreError(f"{path} was altered (its checksum does not match); prepare the store anew")
    return content


def chunk_of(path: Path) -> Chunk:
    """Size and checksum of a file."""
    total, crc = 0, 0
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            total += len(block)
            crc = crc32(block, crc)
    return total, crc
