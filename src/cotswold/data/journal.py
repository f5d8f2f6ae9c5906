"""What an interrupted preparation has done, so that it can go on.

Knows: the files in `.preparing` inside a store. Does not know: how shards are made.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from cotswold.data.layout import Chunk
from cotswold.data.manifest import FOLDER, chunk_of, disk_full_named, write_json
from cotswold.data.preparation import Transform
from cotswold.data.shard import Broken


class Journal:
    """One line for each finished shard; a line cut short by a kill, or one whose file has changed, does not
    count."""

    def __init__(self, store: Path) -> None:
        self.store, self._folder = store, store / FOLDER
        self._lines = self._folder / "shards.jsonl"
        self.done: dict[str, tuple[Chunk, Broken]] = {}

    def request(self) -> dict[str, Any] | None:
        """What the interrupted preparation was asked for; None where there is none."""
        return _read(self._folder / "request.json")

    def begin(self, request: dict[str, Any]) -> None:
        """Start anew."""
        with disk_full_named(self._folder):
            self._folder.mkdir(exist_ok=True)
        write_json(self._folder / "request.json", request)

    def transform(self) -> Transform | None:
        """The transform that the finished shards were made with."""
        state = _read(self._folder / "transform.json")
        return None if state is None else Transform.from_state(state)

    def keep_transform(self, transform: Transform) -> None:
        """Write the transform, before the first shard."""
        write_json(self._folder / "transform.json", transform.state())

    def read(self) -> None:
        """Find the finished shards and check their files."""
        lines = self._lines.read_bytes().splitlines(keepends=True) if self._lines.exists() else []
        whole = [line for line in lines if line.endswith(b"\n")]
        for line in whole:
            entry = json.loads(line)
            chunk, path = (entry["bytes"], entry["crc"]), self.store / entry["key"]
            self.done.pop(entry["key"], None)
            if path.exists() and path.stat().st_size == chunk[0] and chunk_of(path) == chunk:
                self.done[entry["key"]] = chunk, {int(at): why for at, why in entry["broken"].items()}
        if len(whole) < len(lines):
            with self._lines.open("r+b") as file:
                file.truncate(sum(map(len, whole)))

    def add(self, key: str, chunk: Chunk, broken: Broken) -> None:
        """A shard is finished."""
        entry = {"key": key, "bytes": chunk[0], "crc": chunk[1], "broken": broken}
        with disk_full_named(self._lines), self._lines.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        self.done[key] = chunk, broken

    def end(self) -> None:
        """The manifest is written; nothing of this is needed any more."""
        shutil.rmtree(self._folder)


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def sync(path: Path) -> None:
    """Have a file reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
