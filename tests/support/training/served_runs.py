"""`cotswold serve data` as a separate process.

Knows: the command, its output, its end. Does not know: the tests.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]
SECONDS = 60.0


class Command:
    """A running command with its output so far."""

    def __init__(
        self, words: Sequence[object], folder: Path, token: str | None, before: Sequence[str]
    ) -> None:
        environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        environ.pop("COTSWOLD_TOKEN", None)
        if token is not None:
            environ["COTSWOLD_TOKEN"] = token
        command = [*before, sys.executable, "-m", "cotswold.cli.main", "serve", "data", *map(str, words)]
        self.process = subprocess.Popen(command, cwd=folder, env=environ, stderr=subprocess.PIPE)
        self.said = ""

    def until(self, sample: str, seconds: float = SECONDS) -> re.Match[str]:
        """Wait for an output; fail after some seconds, or if the command exits before."""
        deadline = time.monotonic() + seconds
        while (found := re.search(sample, self.said)) is None:
            assert time.monotonic() < deadline, f"it has not said {sample!r}: {self.said}"
            assert self._read(deadline), f"it ended without {sample!r}: {self.said}"
        return found

    def ended(self, seconds: float = SECONDS) -> int:
        """Wait for the exit, and return the exit code."""
        deadline = time.monotonic() + seconds
        while self._read(deadline):
            assert time.monotonic() < deadline, f"it does not end: {self.said}"
        return self.process.wait(max(1.0, deadline - time.monotonic()))

    def send(self, number: int) -> None:
        """Send a signal."""
        assert self.process.poll() is None, self.said
        self.process.send_signal(number)

    def stopped(self) -> str:
        """End the command by Ctrl-C, and return its last sentence."""
        self.send(signal.SIGINT)
        assert self.ended() == 0, self.said
        return self.said.splitlines()[-1]

    @property
    def address(self) -> str:
        """Return the address that it serves at."""
        return self.until(r"serving \S+ at (\S+);")[1]

    def _read(self, deadline: float) -> bool:
        """Read output; return False at its end."""
        assert self.process.stderr is not None
        if not select.select([self.process.stderr], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return True
        came = os.read(self.process.stderr.fileno(), 1 << 16).decode()
        self.said += came
        return bool(came)


@contextmanager
def serving(
    *words: object, folder: Path, token: str | None = "t" * 64, before: Sequence[str] = ()
) -> Iterator[Command]:
    """Yield the command with these words, in a folder, prefixed by ``before``."""
    command = Command(words, folder, token, before)
    try:
        yield command
    finally:
        command.process.kill()
        command.process.communicate()
