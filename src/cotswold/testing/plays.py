"""What processes do in tests: functions that are found by their names, in a process of their own.

Knows: files, signals, exit codes. Does not know: who started the process.
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
    """Ends at once with an exit code."""
    return code


def leave_with(code: int | str) -> None:
    """Leaves by SystemExit, with a code or with words."""
    sys.exit(code)


def fail(text: str) -> None:
    """Raises an error that nobody expects."""
    raise ZeroDivisionError(text)


def refuse(text: str) -> None:
    """Raises a mistake of the user's."""
    raise UserError(text)


def wait() -> None:
    """Goes on for ever."""
    while True:
        time.sleep(3600)


def tell(path: str, words: Sequence[str], variables: Sequence[str]) -> None:
    """Writes what it was given, who it is and what it sees; prints, too."""
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
    """Starts a process that waits, writes its number, and waits as well."""
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    _write(path, str(other.pid))
    wait()


def obey(path: str) -> int:
    """Ends with exit code 7 when SIGTERM asks; writes its number when it is ready for that."""
    asked: list[int] = []  # no event: its lock may be held by whom the signal interrupts
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    _write(path, str(os.getpid()))
    while not asked:
        time.sleep(0.01)
    return 7


def _write(path: str, text: str) -> None:
    """Whole, or not at all."""
    beside = Path(f"{path}.part")
    beside.write_text(text)
    beside.rename(path)
