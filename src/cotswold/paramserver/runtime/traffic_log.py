"""Log of the messages from replicas to a server: time, sender, size; no numbers.

Knows: one file, lines of JSON. Does not know: its readers, the effect of the messages.

The first line describes the server's shards and update rule. Each further line is ``[seconds, replica,
session, "push", number, kind, samples, shards, examples]`` or ``[seconds, replica, session, "pull", number,
shards]``; ``shards`` is 0 for all of the server's shards.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from cotswold.paramserver.core.settings import AsyncSettings
from cotswold.wire import PullNewer, Shard, ToUpdates, Update

VERSION = 1
FOLDER = "traffic"
"""Folder in the directory of a run."""
_BYTES_MOST = 256 << 20
"""Maximum size of a file in bytes; later messages are not logged."""


class TrafficLog:
    """Log of one server; opening it empties the file. Close it after use.

    Each line is written at once, so the log of a killed server is complete.
    """

    def __init__(self, file: Path, shards: Sequence[Shard], settings: AsyncSettings, dtype: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file.open("w", buffering=1, encoding="utf-8")
        self._all = tuple(one.number for one in shards)
        self._started_at = time.monotonic()
        self._bytes = 0
        self._write(
            {
                "traffic": VERSION,
                "dtype": dtype,
                "rule": {"name": settings.rule.name, **asdict(settings.rule)},
                "columns": dict(settings.columns),
                "shards": [[one.number, one.tensor, one.block, one.start, one.stop] for one in shards],
            }
        )

    def note(self, sender: str, message: ToUpdates) -> None:
        """Log a push or a pull; markers and coordinator states are not logged."""
        head = [round(time.monotonic() - self._started_at, 6), sender]
        match message:
            case Update(shards=shards) if shards:
                samples = sum(stop - start for start, stop in message.samples)
                told = [
                    message.number,
                    message.kind,
                    samples,
                    self._shard_key(shards),
                    list(message.examples),
                ]
                self._write([*head, message.session, "push", *told])
            case PullNewer():
                self._write([*head, message.session, "pull", message.number, self._shard_key(message.shards)])

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _shard_key(self, shards: tuple[int, ...]) -> object:
        return 0 if shards == self._all else list(shards)

    def _write(self, line: object) -> None:
        text = json.dumps(line, separators=(",", ":")) + "\n"
        self._bytes += len(text)
        if self._bytes <= _BYTES_MOST:
            self._file.write(text)
