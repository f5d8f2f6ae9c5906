"""Stop and resume processes in tests.

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
    """Stop a process for a `with` block, which begins when the process has stopped.

    Args:
        pid: Process id.

    Raises:
        TimeoutError: The process does not stop.
    """
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: is_stopped(pid), f"process {pid} has stopped")
        yield
    finally:
        with suppress(ProcessLookupError):  # it may be killed while it is stopped
            os.kill(pid, signal.SIGCONT)


def is_running(pid: int) -> bool:
    """Return True if a process exists and has not ended; a zombie has ended.

    Args:
        pid: Process id.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(
    holds: Callable[[], bool], what: str = "the condition holds", seconds: float = WAIT_SECONDS
) -> None:
    """Wait until a condition holds.

    Args:
        holds: The condition.
        what: Description of the condition for the error.
        seconds: Maximum time to wait.

    Raises:
        TimeoutError: The condition does not hold in time; the message has ``what``.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {seconds:g} s it is not so that {what}")
        time.sleep(0.005)
