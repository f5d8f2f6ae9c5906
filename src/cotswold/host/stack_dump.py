"""Dump the stacks of a run's processes: each writes the stacks of its threads on a signal.

Knows: signals, the information on processes in /proc. Does not know: runs, what processes do.

Processes that hang inside a library write their stacks, too: the handler needs no Python code of theirs.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cotswold.files import open_file, open_reading, real_folder
from cotswold.host.process_info import parent_of, process_state, process_tree

SIGNAL = signal.SIGUSR2
_PROC = Path("/proc")
_WAIT_SECONDS = 3.0
_QUIET_SECONDS = 0.2
"""Seconds without further output after which all processes have finished writing."""
_BYTES_MAX = 1 << 18
_STATES = {"T": "is stopped", "t": "is stopped by a debugger", "D": "waits for a disk", "Z": "has ended"}


def dump_on_signal(descriptor: int) -> None:
    """Make this process write its stacks to a descriptor on each signal."""
    faulthandler.register(SIGNAL, file=descriptor, all_threads=True)


@contextmanager
def stack_dumps_to(path: Path) -> Iterator[None]:
    """Make this process write its stacks into a file, for a `with` block; an empty file is removed.

    A process that handles the signal itself is left alone.
    """
    if _has_own_handler():
        yield
        return
    had_folder = path.parent.is_dir()
    real_folder(path.parent)
    file = open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        with stack_dumps_into(file):
            yield
    finally:
        is_empty = os.fstat(file).st_size == 0
        os.close(file)
        if is_empty:
            path.unlink(missing_ok=True)
            if not had_folder:
                with suppress(OSError):  # others have written there
                    path.parent.rmdir()


@contextmanager
def stack_dumps_into(descriptor: int) -> Iterator[None]:
    """Make this process write its stacks to an open file, for a `with` block.

    A process that handles the signal itself is left alone.
    """
    if _has_own_handler():
        yield
        return
    dump_on_signal(descriptor)
    try:
        yield
    finally:
        faulthandler.unregister(SIGNAL)


def _has_own_handler() -> bool:
    return signal.getsignal(SIGNAL) is not signal.SIG_DFL


@dataclass(frozen=True)
class StackDump:
    """The answer of processes that write into one file."""

    name: str
    """Name of the file, without its extension."""
    processes: tuple[int, ...]
    text: str
    """The stacks; empty if the processes did not answer."""
    states: tuple[str, ...]
    """Descriptions of unusual states of the processes, for instance that one is stopped."""


def is_supported() -> bool:
    """True if this system provides information on processes."""
    return (_PROC / "self" / "stat").exists()


def describe_state(process: int) -> str:
    """Describe an unusual state of a process; empty for an ordinary one."""
    return _STATES.get(process_state(process), "")


def request_dumps(process: int, logs: Path) -> list[StackDump]:
    """Make a process, its descendants and its siblings write their stacks into files of the folder ``logs``.

    Siblings are the other ranks of a run: one program has started them all. Processes without a file of the
    folder, or without a handler, are left alone. Raises PermissionError for a process of another user.
    """
    files: dict[Path, list[int]] = {}
    own = process_tree(process)
    others = [each for each in process_tree(parent_of(process)) if each not in own]
    for each in [*own, *others]:
        place = _log_file(each, logs.resolve())
        if place is not None and _handles_signal(each):
            files.setdefault(place, []).append(each)
    before = {place: _size(place) for place in files}
    for each in [each for processes in files.values() for each in processes]:
        with suppress(ProcessLookupError):
            os.kill(each, SIGNAL)
    _await_dumps(before)
    return [_read_dump(place, processes, before[place]) for place, processes in files.items()]


def _read_dump(path: Path, processes: Sequence[int], before: int) -> StackDump:
    states = tuple(f"process {each} {said}" for each in processes if (said := describe_state(each)))
    try:
        with open_reading(path) as file:
            file.seek(before)
            text = file.read(_BYTES_MAX).decode(errors="replace")
    except OSError:
        text = ""
    return StackDump(path.stem, tuple(processes), text, states)


def _await_dumps(before: dict[Path, int]) -> None:
    """Wait until all processes have finished writing, or for some seconds."""
    deadline, sizes, changed = time.monotonic() + _WAIT_SECONDS, dict(before), time.monotonic()
    while time.monotonic() < deadline:
        now = {place: _size(place) for place in before}
        if now != sizes:
            sizes, changed = now, time.monotonic()
        have_all = all(now[place] > before[place] for place in before)
        if have_all and time.monotonic() - changed > _QUIET_SECONDS:
            return
        time.sleep(0.02)


def _size(place: Path) -> int:
    try:
        return place.stat().st_size
    except OSError:
        return 0


def _log_file(process: int, logs: Path) -> Path | None:
    """File of a folder that a process has open: first that to which it prints."""
    descriptors = _PROC / str(process) / "fd"
    try:
        for each in [descriptors / "2", *descriptors.iterdir()]:
            with suppress(FileNotFoundError):  # closed in the meantime
                if (place := each.readlink()).parent == logs:
                    return place
    except OSError:  # the process has ended, or belongs to another user
        return None
    return None


def _handles_signal(process: int) -> bool:
    """True if the process handles the signal; otherwise the signal would end it."""
    with suppress(OSError, ValueError):
        lines: Iterable[str] = (_PROC / str(process) / "status").read_text(errors="replace").splitlines()
        for line in lines:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (SIGNAL - 1) & 1)
    return False
