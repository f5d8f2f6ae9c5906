"""The manifest of a store: its contents and a checksum for every chunk.

Knows: the fields of a manifest, the files of a store and their faults. Does not know: zarr, images.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import stat
from collections.abc import Iterable, Iterator, Sequence
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
from cotswold.phrases import counted

MANIFEST = "manifest.json"
FOLDER = ".preparing"
"""Folder inside an unfinished store, with the journal from which preparation resumes."""
_KIND = "cotswold store "
FORMAT = f"{_KIND}1"
SPLITS = ("train", "validation", "test")
_READ_BYTES = 1 << 20
_NAMED = 5
"""Maximum number of broken images named in a message."""
REMEDY = "prepare the store again or copy it again"


@contextlib.contextmanager
def disk_full_named(path: Path) -> Iterator[None]:
    """Convert operating system errors of a disk to DiskFullError, with a remedy, or MachineError."""
    with disk_errors(path, MachineError, "free some and run the same command again to resume"):
        yield


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` to a file atomically. Raises DiskFullError."""
    with disk_full_named(path):
        replace_file(path, json.dumps(content, indent=1).encode())


def checksum(content: dict[str, Any]) -> str:
    """Return the SHA-256 of a manifest: the identity of a store.

    Notes and warnings are excluded: they are for people.
    """
    rest = {key: value for key, value in content.items() if key not in ("checksum", "notes", "warnings")}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def is_store(name: str | Path) -> bool:
    """True if ``name`` is a folder with a store in it."""
    return (expanded(name) / MANIFEST).is_file()


def read_manifest(store: Path) -> dict[str, Any]:
    """Return the manifest of a finished store.

    Raises StoreError if it is missing, damaged or of another version.
    """
    path = store / MANIFEST
    try:
        content: dict[str, Any] = read_object(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(
            f"{store} is not a finished store (no {MANIFEST}); run `cotswold prepare`"
        ) from error
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}); prepare the store again") from error
    except MalformedError as error:
        raise StoreError(f"{path} cannot be read (it {error}); prepare the store again") from error
    found = content.get("format")
    if isinstance(found, str) and found != FORMAT and found.startswith(_KIND):
        raise StoreError(
            f"{path} was written by a newer version of Cotswold ({found[:40]!r}; this version reads "
            f"{FORMAT!r}); prepare the store again, or install the newer version"
        )
    if found != FORMAT:
        raise StoreError(f"{path} is not a manifest of a {FORMAT}; prepare the store again")
    if content.get("checksum") != checksum(content):
        raise StoreError(f"{path} was altered (its checksum does not match); prepare the store again")
    try:
        _check(content)
    except MalformedError as error:
        raise StoreError(f"{path} {error}; prepare the store again") from error
    return content


def _check(content: dict[str, Any]) -> None:
    """Raise MalformedError if a field is missing, has another type or contradicts another field.

    The checksum is not a signature: a manifest may be malicious.
    """
    for field in ("request", "transform"):
        take(content, field, dict)
    broken = take(content, "broken", dict)
    take(broken, "count", int)
    texts_of = [take(content, name, list) for name in ("notes", "warnings", "classes")]
    for texts in (*texts_of, take(broken, "files", list)):
        if not all(isinstance(text, str) for text in texts):
            raise MalformedError("has a value that is not a text where texts are required")
    chunks = take(content, "chunks", dict)
    for key, chunk in chunks.items():
        if not (isinstance(chunk, list) and [type(each) for each in chunk] == [int, int]):
            raise MalformedError(f"has no valid size and checksum for the chunk {key!r}")
    targets = take(content, "targets", int) if "targets" in content else 0
    if targets < 0:
        raise MalformedError(f"has regression targets of {targets} numbers")
    wanted = {store_layout.ROOT}
    for split, part in take(content, "splits", dict).items():
        if split not in SPLITS or not isinstance(part, dict):
            raise MalformedError(f"has an unknown split {split!r}")
        images, shard = take(part, "samples", int), take(part, "shard", int)
        if images < 1 or shard < 1 or -(-images // shard) > len(chunks):
            raise MalformedError(f"has {images} samples in shards of {shard} in the split {split!r}")
        sequences = take(part, "sequences", int) if "sequences" in part else 0
        if not 0 <= sequences <= images:
            raise MalformedError(f"has {sequences} sequences of {images} frames in the split {split!r}")
        wanted.update(
            store_layout.shard_keys(split, images, shard), store_layout.label_keys(split, images, targets)
        )
        wanted.update(store_layout.descriptions(split, sequences), store_layout.length_keys(split, sequences))
    if wanted != set(chunks):
        stray = sorted(wanted ^ set(chunks))[0]
        raise MalformedError(f"lists chunks that do not match its splits (first difference: {stray!r})")


def chunk_of(path: Path) -> Chunk:
    """Return the size and checksum of a file. Raises OSError for symbolic links and read errors."""
    total, crc = 0, 0
    with open_reading(path) as file:
        while block := file.read(_READ_BYTES):
            total += len(block)
            crc = crc32(block, crc)
    return total, crc


def damaged(store: Path, key: str) -> str:
    """Return the sentence on a file whose contents differ from the manifest."""
    return f"chunk {key} of {store} is damaged; {REMEDY}"


def chunk_fault(store: Path, key: str, chunk: Chunk) -> str | None:
    """Return a sentence on the fault of a file of a store, which is read; None if it is intact."""
    fault = visible_fault(store, key, chunk[0])
    if fault is not None:
        return fault
    try:
        return None if chunk_of(store / key) == chunk else damaged(store, key)
    except OSError as error:
        return f"chunk {key} of {store} cannot be read ({error.strerror}); {REMEDY}"


def visible_fault(store: Path, key: str, size: int) -> str | None:
    """Return a sentence on a fault that is visible without reading the file, else None."""
    try:
        found = (store / key).lstat()
    except OSError:
        return f"chunk {key} of {store} is missing; {REMEDY}"
    if stat.S_ISLNK(found.st_mode):
        return _link(store / key)
    if not stat.S_ISREG(found.st_mode):
        return f"chunk {key} of {store} is not a regular file; {REMEDY}"
    if found.st_size != size:
        return f"chunk {key} of {store} has {found.st_size:,} bytes instead of {size:,}; {REMEDY}"
    return None


def linked_folders(store: Path, keys: Iterable[str]) -> list[str]:
    """Return a sentence for each folder above files of a store that is a symbolic link."""
    parts = (key.split("/")[:-1] for key in keys)
    folders = {"/".join(names[: n + 1]) for names in parts for n in range(len(names))}
    return [_link(store / each) for each in sorted(folders) if (store / each).is_symlink()]


def _link(path: Path) -> str:
    return f"{path} is a symbolic link, and links are not followed here; {REMEDY}"


def broken_note(count: int, named: Sequence[str]) -> str | None:
    """Return a sentence naming the first of ``count`` unreadable images; None if all were readable."""
    if not count:
        return None
    more = f"; and {count - _NAMED:,} more" if count > _NAMED else ""
    were = "was" if count == 1 else "were"
    return f"{counted(count, 'broken image')} {were} left out: {'; '.join(named[:_NAMED])}{more}"
