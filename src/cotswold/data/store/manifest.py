"""The manifest of a store: what is in it, and a checksum of every chunk.

Knows: the fields of a manifest, which files a store must have. Does not know: zarr, pictures.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cotswold.data.store import layout as store_layout
from cotswold.data.store.layout import Chunk
from cotswold.errors import MachineError, StoreError
from cotswold.files import (
    MalformedError,
    disk_errors,
    expanded,
    open_reading,
    read_object,
    replace_file,
    take,
)
from cotswold.files.checksum import crc32

MANIFEST = "manifest.json"
FOLDER = ".preparing"
"""Inside a store while it is being prepared: what an interrupted run needs to go on."""
_KIND = "cotswold store "
FORMAT = f"{_KIND}1"
SPLITS = ("train", "validation", "test")
_READ_BYTES = 1 << 20


@contextlib.contextmanager
def disk_full_named(path: Path) -> Iterator[None]:
    """Turn what the operating system says of a disk into DiskFullError, which says how to go on, or
    MachineError."""
    with disk_errors(path, MachineError, "free some and run the same command again to go on"):
        yield


def write_json(path: Path, content: Any) -> None:
    """Have a file hold ``content``, whole or not at all. Raises DiskFullError."""
    with disk_full_named(path):
        replace_file(path, json.dumps(content, indent=1).encode())


def checksum(content: dict[str, Any]) -> str:
    """SHA-256 of a manifest: the identity of a store.

    The notes do not count: they are for people.
    """
    rest = {key: value for key, value in content.items() if key not in ("checksum", "notes")}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def is_store(name: str | Path) -> bool:
    """Whether a name is that of a folder with a store in it."""
    return (expanded(name) / MANIFEST).is_file()


def read_manifest(store: Path) -> dict[str, Any]:
    """The manifest of a finished store. Raises StoreError where it is missing, damaged or of another
    version."""
    path = store / MANIFEST
    try:
        content: dict[str, Any] = read_object(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(
            f"{store} is not a finished store: it has no {MANIFEST}; run `cotswold prepare`"
        ) from error
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}); prepare the store anew") from error
    except MalformedError as error:
        raise StoreError(f"{path} cannot be read (it {error}); prepare the store anew") from error
    found = content.get("format")
    if isinstance(found, str) and found != FORMAT and found.startswith(_KIND):
        raise StoreError(
            f"{path} was written by a newer version of Cotswold ({found[:40]!r}; this version reads "
            f"{FORMAT!r}); prepare the store again, or install the newer version"
        )
    if found != FORMAT:
        raise StoreError(f"{path} is not a manifest of a {FORMAT}; prepare the store anew")
    if content.get("checksum") != checksum(content):
        raise StoreError(f"{path} was altered (its checksum does not match); prepare the store anew")
    try:
        _check(content)
    except MalformedError as error:
        raise StoreError(f"{path} {error}; prepare the store anew") from error
    return content


def _check(content: dict[str, Any]) -> None:
    """Raise MalformedError where a field is missing, of another type, or contradicts another one.

    A checksum is no signature: whoever wrote the manifest may have meant harm.
    """
    for field in ("request", "transform"):
        take(content, field, dict)
    broken = take(content, "broken", dict)
    take(broken, "count", int)
    for texts in (take(content, "notes", list), take(content, "classes", list), take(broken, "files", list)):
        if not all(isinstance(text, str) for text in texts):
            raise MalformedError("has something else where texts should be")
    chunks = take(content, "chunks", dict)
    for key, chunk in chunks.items():
        if not (isinstance(chunk, list) and [type(each) for each in chunk] == [int, int]):
            raise MalformedError(f"says of the chunk {key!r} neither size nor checksum")
    targets = take(content, "targets", int) if "targets" in content else 0
    if targets < 0:
        raise MalformedError(f"has regression targets of {targets} numbers")
    wanted = {store_layout.ROOT}
    for split, part in take(content, "splits", dict).items():
        if split not in SPLITS or not isinstance(part, dict):
            raise MalformedError(f"has a split {split!r}, which is none")
        pictures, shard = take(part, "pictures", int), take(part, "shard", int)
        if pictures < 1 or shard < 1 or -(-pictures // shard) > len(chunks):
            raise MalformedError(f"has {pictures} samples in shards of {shard} in the split {split!r}")
        sequences = take(part, "sequences", int) if "sequences" in part else 0
        if not 0 <= sequences <= pictures:
            raise MalformedError(f"has {sequences} sequences of {pictures} frames in the split {split!r}")
        wanted.update(
            store_layout.shard_keys(split, pictures, shard), store_layout.label_keys(split, pictures, targets)
        )
        wanted.update(store_layout.descriptions(split, sequences), store_layout.length_keys(split, sequences))
    if wanted != set(chunks):
        stray = sorted(wanted ^ set(chunks))[0]
        raise MalformedError(f"lists other chunks than its splits have ({stray!r} is one that differs)")


def chunk_of(path: Path) -> Chunk:
    """Size and checksum of a file; raises OSError where it cannot be read or is a symbolic link."""
    total, crc = 0, 0
    with open_reading(path) as file:
        while block := file.read(_READ_BYTES):
            total += len(block)
            crc = crc32(block, crc)
    return total, crc
