"""A terminal: one shell, with a command in its foreground at a time.

Knows: the shell, the output, Ctrl-C, the exit status of each command. Does not know: pages.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cotswold.host.process_info import process_tree

SECONDS = 300.0
"""Longest time of a command, and longest wait for an output."""
_MARK = "\x1eend of command"
_PAUSE = 0.02


class Terminal:
    """One shell in a folder; its commands read no input."""

    def __init__(self, folder: Path, environment: Mapping[str, str], output: Path) -> None:
        self._file = output
        with output.open("wb") as out:
            self._shell = subprocess.Popen(
                ["bash", "--noprofile", "--norc"],
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._typed = 0
        # as in a terminal, the command has a process group, and its SIGINT does not end the shell
        self._write("set -m\ntrap : INT\n")

    def type(self, command: str) -> None:
        """Start a command."""
        self._typed += 1
        # the shell leaves out the rest of a line whose command ends by SIGINT
        self._write(f"{{ {command}\n}} </dev/null\n_status=$?\necho; echo '{_MARK}' $_status\n")

    def wait(self, seconds: float = SECONDS) -> int:
        """Wait for the end of the last command, and return its exit status."""
        deadline = time.monotonic() + seconds
        while len(found := re.findall(rf"{_MARK} (\d+)\n", self._raw())) < self._typed:
            assert time.monotonic() < deadline, f"the command does not end:\n{self.output}"
            assert self._shell.poll() is None, f"the shell has ended:\n{self.output}"
            time.sleep(_PAUSE)
        return int(found[-1]) if found else 0

    def wait_for(self, lines: re.Pattern[str], start: int, seconds: float = SECONDS) -> int:
        """Wait for lines in the output from a position on; return the position after them."""
        deadline = time.monotonic() + seconds
        while (found := lines.search(self.output, start)) is None:
            is_over = self.is_idle or time.monotonic() > deadline
            if is_over and lines.search(self.output, start) is None:
                raise AssertionError(f"not shown: {lines.pattern}\nshown:\n{self.output[start:]}")
            time.sleep(_PAUSE)
        return found.end()

    def interrupt(self) -> None:
        """Send SIGINT to the command in the foreground, as Ctrl-C does."""
        deadline = time.monotonic() + SECONDS
        while (group := self._foreground()) is None:  # the command has just been typed
            assert not self.is_idle and time.monotonic() < deadline, f"no command runs:\n{self.output}"
            time.sleep(_PAUSE)
        os.killpg(group, signal.SIGINT)

    @property
    def is_idle(self) -> bool:
        """True if no command runs."""
        return self._raw().count(_MARK) == self._typed

    @property
    def output(self) -> str:
        """Return the output of all commands so far."""
        return re.sub(rf"\n?{_MARK} \d+\n", "", self._raw())

    def close(self) -> None:
        """End the shell, and every process that it has started and that still runs."""
        for each in process_tree(self._shell.pid):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        assert self._shell.stdin is not None
        with suppress(BrokenPipeError):
            self._shell.stdin.close()
        self._shell.wait()

    def _foreground(self) -> int | None:
        """Return the process group of the command; None before it has one."""
        _, *commands = process_tree(self._shell.pid)
        with suppress(ProcessLookupError):
            if commands and (group := os.getpgid(commands[0])) != self._shell.pid:
                return group
        return None

    def _raw(self) -> str:
        return self._file.read_text(encoding="utf-8", errors="replace")

    def _write(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(text.encode())
        self._shell.stdin.flush()
