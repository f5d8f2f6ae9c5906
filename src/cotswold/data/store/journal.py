"""The journal of an interrupted preparation, from which the preparation resumes.

Knows: the files in `.preparing` inside a store. Does not know: how shards are made.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cotswold.data.preprocessing import AnyTransform, transform_from_state
from cotswold.data.store.layout import Chunk
from cotswold.data.store.manifest import FOLDER, chunk_of, disk_full_named, write_json
from cotswold.data.store.shard import BrokenSamples
from cotswold.errors import StoreError
from cotswold.files import (
    PARTIAL,
    MalformedError,
    open_file,
    parse_object,
    read_bytes,
    read_object,
    real_folder,
    take,
)

_REQUEST = "request.json"
_LINES_BYTES_MAX = 256 << 20


class Journal:
    """One line for each finished shard; truncated or malformed lines and lines of changed files are ignored.

    Any other damage raises StoreError.
    """

    def __init__(self, store: Path) -> None:
        self.store, self._folder = store, store / FOLDER
        self._lines = self._folder / "shards.jsonl"
        self.finished_chunks: dict[str, tuple[Chunk, BrokenSamples]] = {}

    def request(self) -> dict[str, Any] | None:
        """Return the request of the interrupted preparation, or None if there was none."""
        if self._folder.is_symlink():
            raise StoreError(f"{self._folder} is a symbolic link, and links are not followed here; delete it")
        return self._read(_REQUEST)

    def is_empty(self) -> bool:
        """True if the store is empty, except for what a kill leaves before the request is written."""
        if any(path != self._folder for path in self.store.iterdir()):
            return False
        if not self._folder.exists():
            return True
        names = [path.name for path in self._folder.iterdir()]
        return all(name.startswith(_REQUEST) and name.endswith(PARTIAL) for name in names)

    def begin(self, request: dict[str, Any]) -> None:
        """Delete an older journal and write the request."""
        with disk_full_named(self._folder):
            real_folder(self._folder)
            for path in self._folder.iterdir():
                path.unlink()
        write_json(self._folder / _REQUEST, request)

    def transform(self) -> AnyTransform | None:
        """Return the transform that made the finished shards."""
        state = self._read("transform.json")
        try:
            return None if state is None else transform_from_state(state)
        except MalformedError as error:
            raise self._damaged("transform.json", str(error)) from error

    def keep_transform(self, transform: AnyTransform) -> None:
        """Write the transform, before the first shard."""
        write_json(self._folder / "transform.json", transform.state())

    def read(self, shards: Mapping[str, int]) -> None:
        """Load the finished shards among ``shards`` (samples by key) and check their files.

        Partial files are deleted.
        """
        try:
            lines = read_bytes(self._lines, _LINES_BYTES_MAX).splitlines(keepends=True)
        except FileNotFoundError:
            lines = []
        except OSError as error:
            raise self._damaged(self._lines.name, f"cannot be read ({error.strerror})") from error
        whole = [line for line in lines if line.endswith(b"\n")]
        for line in whole:
            entry = _entry(line, shards)
            if entry is None:
                continue
            key, chunk, broken = entry
            self.finished_chunks.pop(key, None)
            if _is_unchanged(self.store / key, chunk):
                self.finished_chunks[key] = chunk, broken
        if len(whole) < len(lines):
            os.truncate(self._lines, sum(map(len, whole)))
        for folder, _, names in os.walk(self.store):
            for name in names:
                if name.endswith(PARTIAL):
                    Path(folder, name).unlink()

    def add(self, key: str, chunk: Chunk, broken: BrokenSamples) -> None:
        """Record a finished shard."""
        entry = {"key": key, "bytes": chunk[0], "crc": chunk[1], "broken": broken}
        with disk_full_named(self._lines):
            file = open_file(self._lines, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            with os.fdopen(file, "ab") as lines:
                lines.write(json.dumps(entry).encode() + b"\n")
        self.finished_chunks[key] = chunk, broken

    def end(self) -> None:
        """Delete the journal once the manifest is written."""
        with disk_full_named(self._folder):
            if self._folder.exists():
                shutil.rmtree(self._folder)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            return read_object(self._folder / name)
        except FileNotFoundError:
            return None
        except MalformedError as error:
            raise self._damaged(name, str(error)) from error
        except OSError as error:
            raise self._damaged(name, f"cannot be read ({error.strerror})") from error

    def _damaged(self, name: str, said: str) -> StoreError:
        return StoreError(
            f"{self._folder / name} {said}; delete the unfinished {self.store} and prepare it again"
        )


def _entry(line: bytes, shards: Mapping[str, int]) -> tuple[str, Chunk, BrokenSamples] | None:
    """Return a line's shard, chunk and broken samples; None if the shard is not in ``shards``."""
    try:
        entry = parse_object(line)
        key, chunk = take(entry, "key", str), (take(entry, "bytes", int), take(entry, "crc", int))
        broken = {int(at): str(why) for at, why in take(entry, "broken", dict).items()}
    except ValueError:  # MalformedError is one
        return None
    if key not in shards or not all(0 <= at < shards[key] for at in broken):
        return None
    return key, chunk, broken


def _is_unchanged(path: Path, chunk: Chunk) -> bool:
    """True if a file is unchanged since it was written."""
    try:
        return path.lstat().st_size == chunk[0] and chunk_of(path) == chunk
    except OSError:
        return False


def sync(path: Path) -> None:
    """Flush a file to disk."""
    descriptor = open_file(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
