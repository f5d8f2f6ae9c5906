"""Processes that are stopped, and let go on, as a test needs it.

Knows: signals, /proc. Does not know: what the processes do.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cotswold.host.process_info import is_stopped

WAIT_SECONDS = 20.0


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process stands still inside a `with` block: when it is entered, it has stopped already."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: is_stopped(pid), f"process {pid} has stopped")
        yield
    finally:
        with suppress(ProcessLookupError):  # it may be killed while it stands still
            os.kill(pid, signal.SIGCONT)


def is_running(pid: int) -> bool:
    """Whether a process is there that has not ended; one whose end nobody has asked for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(
    holds: Callable[[], bool], what: str = "what was awaited", seconds: float = WAIT_SECONDS
) -> None:
    """Wait until something holds; raises TimeoutError that says ``what`` does not."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {seconds:g} s it is not so that {what}")
        time.sleep(0.005)
