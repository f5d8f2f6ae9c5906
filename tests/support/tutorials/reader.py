"""A reader who does what a tutorial says, in a folder, and compares the outputs with those of the page.

Knows: the steps of a page, the reader's folder and terminals. Does not know: what a page teaches.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.ports import free_ports
from tests.support.tutorials.page import Press, Save, See, Step, Type, pattern, steps
from tests.support.tutorials.terminal import Terminal

_PORT = re.compile(r"(?<=127\.0\.0\.1:)7\d{3}\b")
_INSTALLS = re.compile(r"^(?:uv )?pip install ")
_PROGRAMS = {
    "python": "",
    "cotswold": "-m cotswold.cli.main ",
    "torchrun": "-m torch.distributed.run ",
}
_KILLED = 137
_INTERRUPTED = 130


@dataclass
class Reader:
    """The folder and the terminals of a reader.

    Args:
        folder: Empty; files of the page and their results.
    """

    folder: Path
    terminals: dict[str, Terminal] = field(default_factory=dict)
    """Terminals by their ordinal number."""
    _seen: dict[str, int] = field(default_factory=dict)
    _allowed: dict[str, set[int]] = field(default_factory=dict)

    def follow(self, page: Path) -> None:
        """Do every step of a page, in order; fail if a command fails or an output differs."""
        wanted = list(steps(page))
        numbers = sorted(set(_PORT.findall(page.read_text(encoding="utf-8"))))
        self._write_programs()
        with ExitStack() as held:
            held.callback(self._close)
            ports = dict(zip(numbers, held.enter_context(free_ports(len(numbers))), strict=True))
            for place, step in enumerate(wanted):
                try:
                    self._do(step, wanted[place + 1 :], lambda text: self._adapt(text, ports))
                except AssertionError as error:
                    raise AssertionError(f"{page.name}:{step.line}: {error}") from error
            for name in self.terminals:
                self._finish(name)

    def output(self, terminal: str = "first") -> str:
        """Return the output of a terminal."""
        return self.terminals[terminal].output

    def _do(self, step: Step, later: list[Step], adapt: Callable[[str], str]) -> None:
        match step:
            case Save():
                with (self.folder / step.name).open("a" if step.is_appended else "w") as file:
                    file.write(adapt(step.text))
            case Type() if not step.is_elsewhere:
                typed = [each for each in step.commands if not _INSTALLS.match(each)]
                self._type(step.terminal, [adapt(each) for each in typed], later)
            case See():
                start = self._seen.get(step.terminal, 0)
                shown = pattern(step.text.replace("Killed\n", ""))
                self._seen[step.terminal] = self.terminals[step.terminal].wait_for(shown, start)
            case Press():
                self._allowed[step.terminal] = {0, _INTERRUPTED}
                self.terminals[step.terminal].interrupt()

    def _type(self, name: str, commands: list[str], later: list[Step]) -> None:
        if name not in self.terminals:
            self.terminals[name] = Terminal(self.folder, self._environment(), self._output_of(name))
        self._finish(name)
        self._seen[name] = len(self.terminals[name].output)
        for command in commands:
            self._finish(name)
            self._allowed[name] = {0}
            self.terminals[name].type(command)
        if "Killed" in _shown_later(name, later):
            self._allowed[name] = {_KILLED}

    def _finish(self, name: str) -> None:
        """Wait for the command of a terminal, and fail if its exit status is not that of the page."""
        status = self.terminals[name].wait()
        assert status in self._allowed.get(name, {0}), f"exit status {status}:\n{self.terminals[name].output}"

    def _output_of(self, name: str) -> Path:
        return self.folder.parent / f"{self.folder.name}-{name}.txt"

    @property
    def _programs(self) -> Path:
        return self.folder.parent / f"{self.folder.name}-bin"

    def _write_programs(self) -> None:
        """Write the commands of a page as programs of this interpreter."""
        self._programs.mkdir()
        for name, words in _PROGRAMS.items():
            file = self._programs / name
            file.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words}"$@"\n')
            file.chmod(0o700)

    def _environment(self) -> Mapping[str, str]:
        """Return variables with which programs of a page import what this process does."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("COTSWOLD_")}
        paths = os.pathsep.join(str(Path(each).absolute()) for each in sys.path if each)
        return {
            **kept,
            "COTSWOLD_CACHE": os.environ["COTSWOLD_CACHE"],
            "OMP_NUM_THREADS": "1",
            "PATH": f"{self._programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": paths,
        }

    def _adapt(self, text: str, ports: Mapping[str, int]) -> str:
        return _PORT.sub(lambda found: str(ports[found[0]]), text)

    def _close(self) -> None:
        for terminal in self.terminals.values():
            terminal.close()


def _shown_later(terminal: str, later: list[Step]) -> list[str]:
    """Return the lines that a terminal shows before its next command."""
    lines: list[str] = []
    for step in later:
        if isinstance(step, Type) and step.terminal == terminal:
            break
        if isinstance(step, See) and step.terminal == terminal:
            lines += step.text.splitlines()
    return lines
