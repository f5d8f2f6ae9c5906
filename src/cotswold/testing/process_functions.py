"""Functions that test processes run; a process finds them by name.

Knows: files, signals, exit codes. Does not know: the starting process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from cotswold.errors import UserError


def end_with(code: int | None) -> int | None:
    """End at once with an exit code."""
    return code


def leave_with(code: int | str) -> None:
    """Exit by SystemExit, with a code or a text."""
    sys.exit(code)


def fail(text: str) -> None:
    """Raise an unexpected error."""
    raise ZeroDivisionError(text)


def refuse(text: str) -> None:
    """Raise a user's mistake."""
    raise UserError(text)


def wait() -> None:
    """Wait forever."""
    while True:
        time.sleep(3600)


def tell(path: str, words: Sequence[str], variables: Sequence[str]) -> None:
    """Write its arguments, process ids and environment into a file; print, too."""
    said = {
        "words": words,
        "pid": os.getpid(),
        "group": os.getpgid(0),
        "variables": {name: os.environ.get(name) for name in variables},
        "in_main_thread": threading.current_thread() is threading.main_thread(),
        "read": sys.stdin.read(),
        "interrupts": signal.getsignal(signal.SIGINT) == signal.default_int_handler,
        "waits": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
    }
    _write(path, json.dumps(said))
    print("printed")
    print("printed as an error", file=sys.stderr)


def start_another(path: str) -> None:
    """Start a process that waits, write its process id, and wait as well."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    _write(path, str(other.pid))
    wait()


def obey(path: str) -> int:
    """End with exit code 7 on SIGTERM; write the process id when ready for it."""
    asked: list[int] = []  # not an event: the interrupted thread may hold its lock
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    _write(path, str(os.getpid()))
    while not asked:
        time.sleep(0.01)
    return 7


def _write(path: str, text: str) -> None:
    """Write a file whole or not at all."""
    beside = Path(f"{path}.part")
    beside.write_text(text)
    beside.rename(path)
