"""Events of a run: one JSON object per line, appended and never rewritten.

Knows: lines, clocks, that a kill may tear the last line, that observers may fail. Does not know: the kinds of
events.
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
from typing import BinaryIO, Protocol, runtime_checkable

from cotswold.errors import MachineError
from cotswold.files import MalformedError, disk_errors, open_file, open_reading, parse_object, write_all
from cotswold.recipe import format_of

Event = dict[str, object]
"""An event: JSON values by field name, among them ``kind``, ``time`` and ``seconds``."""

LINE_BYTES_MAX = 16 << 20
"""Longest event in bytes."""
_SECONDS_MAX = 1e10
"""Largest plausible time in seconds: a run of three centuries, or a clock in the year 2286."""


class Log(Protocol):
    """Receiver of events."""

    def write(self, kind: str, **fields: object) -> None:
        """Write an event."""
        ...

    def show(self, kind: str, **fields: object) -> None:
        """Show an event without saving it."""
        ...


class NoLog:
    """A log that drops all events, for ranks that write none."""

    def write(self, kind: str, **fields: object) -> None:
        """Drop the event.

        Args:
            kind: ignored.
            fields: ignored.
        """

    def show(self, kind: str, **fields: object) -> None:
        """Drop the event.

        Args:
            kind: ignored.
            fields: ignored.
        """


@runtime_checkable
class Observer(Protocol):
    """A further receiver of all events; after it raises, it receives no more."""

    @property
    def name(self) -> str:
        """Name of the observer in the log's error event."""
        ...

    def write(self, event: Mapping[str, object]) -> None:
        """Receive one event."""

    def close(self) -> None:
        """Release resources; no events follow."""


class EventLog:
    """Appends events to a new or existing file.

    A torn last line of an existing file is removed, and its seconds continue. Each event gets ``kind``,
    ``time`` (unix seconds) and ``seconds`` of the run, without the time between an interruption and the
    resumption. Both advance by `ticks`; the wall clock, which may be changed, is read once. So times never
    decrease: if the wall clock was set back before a resumption, ``time`` continues from the last event. If
    an observer raises, it receives no more events, and the log writes an event ``observer_lost`` with the
    error.

    Args:
        path: the file, created if missing.
        observers: receivers of all events.
        clock: wall clock in unix seconds.
        ticks: monotonic clock in seconds.
        began: value of `ticks` at the start of this session, if before the log was opened.

    Raises:
        MachineError: if the file cannot be opened or read.
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
        self._path, self._observers, self._ticks = path, list(observers), ticks
        with disk_errors(path, MachineError):
            self._file = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            end, earlier, last = _complete_events(path)
            os.ftruncate(self._file, end)
        self.earlier_seconds = earlier
        """Seconds of the run before this session."""
        self._began = (ticks() if began is None else began) - earlier
        self._opened, self._opened_time = ticks(), max(clock(), last)

    @property
    def seconds(self) -> float:
        """Seconds of the run so far, earlier sessions included."""
        return self._ticks() - self._began

    def show(self, kind: str, **fields: object) -> None:
        """Send observers a transient event that the log does not save.

        Args:
            kind: kind of the event.
            fields: its values.
        """
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
        """Append an event; numbers that are not finite become null.

        Args:
            kind: kind of the event.
            fields: its values: JSON values, paths, tensors or arrays of one number.

        Raises:
            DiskFullError: if the disk is full; the file keeps no torn line.
        """
        event = self._event(kind, fields)
        text = json.dumps(event, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        line = text.encode("utf-8", "backslashreplace") + b"\n"  # names of files may not be UTF-8
        with disk_errors(self._path, MachineError):
            end = os.fstat(self._file).st_size
            try:
                write_all(self._file, line)
            except OSError:
                os.ftruncate(self._file, end)
                raise
        self._show(lambda observer: observer.write(event))

    def _show(self, show: Callable[[Observer], None]) -> None:
        """Call every observer; a failing observer must not affect training."""
        lost: dict[str, str] = {}
        for observer in [*self._observers]:
            try:
                show(observer)
            except Exception as error:  # any exception is the observer's fault
                self._observers.remove(observer)
                with suppress(Exception):  # it may hold a file
                    observer.close()
                lost[observer.name] = f"{type(error).__name__}: {error}"
        for name, sentence in lost.items():
            self.write("observer_lost", observer=name, error=sentence)

    def sync(self) -> None:
        """Flush all events to the disk, so that they survive a power cut."""
        with disk_errors(self._path, MachineError):
            os.fsync(self._file)

    def close(self) -> None:
        """Flush and close the file; no events may follow."""
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
    """Yield the events of a log, which may still grow; a torn last line is skipped.

    Args:
        path: the file of events.

    Raises:
        MachineError: for any other invalid line, and if the file cannot be read.
        FormatError: if a newer version wrote the events.
    """
    with _open_log(path) as file:
        for number, line in enumerate(_lines(file), 1):
            event = _parse(line)
            if event is not None:
                format_of(event, str(path))
                yield event
            elif line.endswith(b"\n") or file.read(1):
                raise MachineError(f"{path}, line {number}, is not an event; remove that line to continue")


def _complete_events(path: Path) -> tuple[int, float, float]:
    """Return the end of the last whole event in bytes, its ``seconds``, and the latest ``time``."""
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
    """Return a number of seconds if it is plausible, else ``otherwise``."""
    sound = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _SECONDS_MAX
    return float(value) if sound else otherwise  # type: ignore[arg-type]  # checked above


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield lines, and parts of lines that are longer than any event."""
    return iter(lambda: file.readline(LINE_BYTES_MAX), b"")


@contextmanager
def _open_log(path: Path) -> Iterator[BinaryIO]:
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
    return {str(key): _to_json(value) for key, value in items.items()}


def _to_json(value: object) -> object:
    """Convert a value to JSON: tensors and arrays of one number, paths as text, NaN and infinity as null."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return _plain_items(value)
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return _to_json(value.tolist())
    raise TypeError(f"an event cannot hold a {type(value).__name__}")
