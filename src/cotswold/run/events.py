"""The events of a run: one JSON object a line, appended and never rewritten.

Knows: lines, a clock, that the last line may be torn by a kill. Does not know: which events there are.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol

from cotswold.errors import MachineError
from cotswold.files.durable import disk_errors, write_all

Event = dict[str, object]


class Mirror(Protocol):
    """Something that also wants to see every event."""

    def write(self, event: Mapping[str, object]) -> None:
        """Take one event."""

    def close(self) -> None:
        """No more will come."""


class EventLog:
    """Appends events to a file; a new or an old one, whose torn last line is cut off and whose time goes on.

    Each event gets ``kind``, ``time`` (unix seconds) and ``seconds`` since the run began, time between an
    interruption and the resumption left out.
    """

    def __init__(
        self, path: Path, *, mirror: Mirror | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._path, self._mirror, self._clock = path, mirror, clock
        with disk_errors(path, MachineError):
            end, earlier = _whole(path)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            os.ftruncate(self._file, end)
        self._began = clock() - earlier

    @property
    def seconds(self) -> float:
        """Seconds of running so far, those before resumptions included."""
        return self._clock() - self._began

    def write(self, kind: str, **fields: object) -> None:
        """Append an event; numbers that are not finite become null. DiskFullError leaves no torn line."""
        event = {
            "kind": kind,
            "time": self._clock(),
            "seconds": round(self.seconds, 3),
            **_plain_items(fields),
        }
        line = json.dumps(event, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        with disk_errors(self._path, MachineError):
            end = os.fstat(self._file).st_size
            try:
                write_all(self._file, line)
            except OSError:
                os.ftruncate(self._file, end)
                raise
        if self._mirror is not None:
            self._mirror.write(event)

    def sync(self) -> None:
        """Make everything written so far survive a power cut."""
        with disk_errors(self._path, MachineError):
            os.fsync(self._file)

    def close(self) -> None:
        """Sync and close; the log takes no more events."""
        self.sync()
        os.close(self._file)
        if self._mirror is not None:
            self._mirror.close()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_events(path: Path) -> Iterator[Event]:
    """The events of a log that may still be growing; a torn last line is left out.

    Raises MachineError for any other line that is no event.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            event = _parse(line)
            if event is not None:
                yield event
            elif line.endswith(b"\n") or file.read(1):
                raise MachineError(f"{path}, line {number}, is not an event; take that line out to go on")


def _whole(path: Path) -> tuple[int, float]:
    """Where the last whole event ends, bytes, and the ``seconds`` that it bears."""
    end, position, seconds = 0, 0, 0.0
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                position += len(line)
                event = _parse(line)
                if event is not None:
                    stamp = event.get("seconds")
                    end, seconds = position, float(stamp) if isinstance(stamp, int | float) else seconds
    return end, seconds


def _parse(line: bytes) -> Event | None:
    try:
        event = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _plain_items(items: Mapping[str, object]) -> Event:
    return {str(key): _plain(value) for key, value in items.items()}


def _plain(value: object) -> object:
    """What JSON can hold: tensors and arrays of one number become it, paths text, NaN and infinity null."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return _plain_items(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    raise TypeError(f"an event cannot hold a {type(value).__name__}")
