"""The events of a run: one JSON object a line, appended and never rewritten.

Knows: lines, clocks, that the last line may be torn by a kill, that whoever looks on may fail. Does not know:
which events there are.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol

from cotswold.errors import MachineError
from cotswold.files import MalformedError, disk_errors, open_file, open_reading, parse_object, write_all
from cotswold.recipe import format_of

Event = dict[str, object]

LINE_BYTES_MAX = 16 << 20
"""No event is longer."""
_SECONDS_MAX = 1e10
"""No run takes longer (three centuries), and no clock on the wall is ahead of the year 2286."""


class Observer(Protocol):
    """Something that also wants to see every event; one that raises is left out from then on."""

    @property
    def name(self) -> str:
        """What the log calls it where it fails."""
        ...

    def write(self, event: Mapping[str, object]) -> None:
        """Take one event."""

    def close(self) -> None:
        """No more will come."""


class EventLog:
    """Appends events to a file; a new or an old one, whose torn last line is cut off and whose time goes on.

    Each event gets ``kind``, ``time`` (unix seconds) and ``seconds`` since the run began, time between an
    interruption and the resumption left out. Both go by ``ticks``, which only go on; the ``clock`` on the
    wall, which may be set back and forth, is read once. So times never go back, not even where the clock was
    set back before a resumption: they go on from the last event then. An observer that raises sees no more;
    the log says which, and why, in an event ``observer_lost``.
    """

    def __init__(
        self,
        path: Path,
        *,
        observers: Sequence[Observer] = (),
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
        began: float | None = None,
    ) -> None:
        """``began``: when by ``ticks`` this session began, where that was before the log is opened."""
        self._path, self._observers, self._ticks = path, list(observers), ticks
        with disk_errors(path, MachineError):
            self._file = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            end, earlier, last = _whole(path)
            os.ftruncate(self._file, end)
        self.earlier_seconds = earlier
        """Seconds of running before this session."""
        self._began = (ticks() if began is None else began) - earlier
        self._opened, self._opened_time = ticks(), max(clock(), last)

    @property
    def seconds(self) -> float:
        """Seconds of running so far, those before resumptions included."""
        return self._ticks() - self._began

    def show(self, kind: str, **fields: object) -> None:
        """Show observers an event that the log does not keep: what is of interest for a moment."""
        event = self._event(kind, fields)
        self._show(lambda observer: observer.write(event))

    def _event(self, kind: str, fields: Mapping[str, object]) -> Event:
        return {
            "kind": kind,
            "time": self._opened_time + (self._ticks() - self._opened),
            "seconds": round(self.seconds, 3),
            **_plain_items(fields),
        }

    def write(self, kind: str, **fields: object) -> None:
        """Append an event; numbers that are not finite become null. DiskFullError leaves no torn line."""
        event = self._event(kind, fields)
        text = json.dumps(event, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        line = text.encode("utf-8", "backslashreplace") + b"\n"  # names of files may be no UTF-8
        with disk_errors(self._path, MachineError):
            end = os.fstat(self._file).st_size
            try:
                write_all(self._file, line)
            except OSError:
                os.ftruncate(self._file, end)
                raise
        self._show(lambda observer: observer.write(event))

    def _show(self, show: Callable[[Observer], None]) -> None:
        """Have every observer see something; training does not depend on who looks on."""
        lost: dict[str, str] = {}
        for observer in [*self._observers]:
            try:
                show(observer)
            except Exception as error:  # whatever it is, it is the observer's
                self._observers.remove(observer)
                with suppress(Exception):  # it holds a file, perhaps
                    observer.close()
                lost[observer.name] = f"{type(error).__name__}: {error}"
        for name, sentence in lost.items():
            self.write("observer_lost", observer=name, error=sentence)

    def sync(self) -> None:
        """Make everything written so far survive a power cut."""
        with disk_errors(self._path, MachineError):
            os.fsync(self._file)

    def close(self) -> None:
        """Sync and close; the log takes no more events."""
        try:
            self._show(lambda observer: observer.close())
            self.sync()
        finally:
            os.close(self._file)

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_events(path: Path) -> Iterator[Event]:
    """The events of a log that may still be growing; a torn last line is left out.

    Raises MachineError for any other line that is no event, and where the file cannot be read; FormatError
    where a newer version has written there.
    """
    with _reading(path) as file:
        for number, line in enumerate(_lines(file), 1):
            event = _parse(line)
            if event is not None:
                format_of(event, str(path))
                yield event
            elif line.endswith(b"\n") or file.read(1):
                raise MachineError(f"{path}, line {number}, is not an event; take that line out to go on")


def _whole(path: Path) -> tuple[int, float, float]:
    """Where the last whole event ends, bytes, its ``seconds``, and the latest ``time`` of all."""
    end, position, seconds, latest = 0, 0, 0.0, 0.0
    with open_reading(path) as file:
        for line in _lines(file):
            position += len(line)
            event = _parse(line)
            if event is not None:
                end = position
                seconds = _number(event.get("seconds"), seconds)
                latest = max(latest, _number(event.get("time"), latest))
    return end, seconds, latest


def _number(value: object, otherwise: float) -> float:
    """A number of seconds that can be one."""
    sound = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _SECONDS_MAX
    return float(value) if sound else otherwise  # type: ignore[arg-type]  # checked above


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines, and parts of lines that are longer than any event."""
    return iter(lambda: file.readline(LINE_BYTES_MAX), b"")


@contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    try:
        with open_reading(path) as file:
            yield file
    except OSError as error:
        raise MachineError(f"{path} cannot be read: {error.strerror}") from error


def _parse(line: bytes) -> Event | None:
    if not line.endswith(b"\n"):
        return None
    try:
        event = parse_object(line)
    except MalformedError:
        return None
    return event if isinstance(event.get("kind"), str) else None


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
