"""Runs the commands of sources one after another, within some hours; a later call resumes.

Knows: processes, existing results, how time is divided. Does not know: the contents of a result, pages.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cotswold.errors import UserError
from cotswold.ui.terminal import write_message
from lib.papers.sources import SOURCES, Command, Size, Source

BENCHMARKS = Path(__file__).parents[2]
Run = Callable[[Sequence[str]], int]
"""Runs a command line and returns the exit status."""


def run_here(words: Sequence[str]) -> int:
    """Run a process on this terminal, with its output on stderr, so that stdout stays clean."""
    return subprocess.run(words, stdout=sys.stderr.fileno()).returncode


@dataclass
class PaperRunner:
    """The sources of a paper, at one size, in one directory of results."""

    out: Path
    work: Path
    size: Size
    hours: float
    sources: Mapping[str, Source] = field(default_factory=lambda: SOURCES)
    run: Run = run_here
    clock: Callable[[], float] = time.monotonic
    problems: dict[str, str] = field(default_factory=dict)
    """Reason for each source without a result of this size."""

    def all(self, names: Sequence[str], after: Callable[[], None]) -> None:
        """Run the sources without a result, the shortest first; call ``after`` each."""
        until = self.clock() + 3600 * self.hours
        order = sorted(names, key=lambda name: (self.sources[name].minutes[self.size], name))
        for place, name in enumerate(order):
            source = self.sources[name]
            left = max(0.0, until - self.clock()) / 60
            least = source.minutes[self.size]
            if not source.goes_on and self.kept(name):
                continue
            if left < least:
                if not self.kept(name):
                    self.problems[name] = (
                        f"{name} was not run: it takes about {least:g} minutes at this size, and "
                        f"{max(left, 0):.0f} were left; the same command with more --hours resumes"
                    )
                continue
            self._one(name, source, self._share(order[place:], left))
            after()

    def kept(self, name: str) -> bool:
        """True if there is a result of this size."""
        return (self.out / f"{name}.json").is_file()

    def words(self, command: Command, minutes: float) -> list[str]:
        """Return the arguments of a command."""
        places = {
            "out": self.out.absolute(),
            "work": self.work.absolute(),
            "minutes": f"{minutes:.1f}",
            "hours": f"{minutes / 60:.3f}",
        }
        first, *rest = (word.format(**places) for word in command.words)
        program = ["-m", "cotswold"] if first == "cotswold" else [str(BENCHMARKS / first)]
        return [sys.executable, *program, *rest]

    def _share(self, names: Sequence[str], left: float) -> float:
        """Return the minutes of the first source: its own minimum, and a share of the time left after the
        minima of all sources, divided among the resumable ones."""
        needed = sum(self.sources[name].minutes[self.size] for name in names if self._wanted(name))
        more = sum(1 for name in names if self.sources[name].goes_on)
        own = self.sources[names[0]].minutes[self.size]
        return own + max(0.0, left - needed) / max(1, more)

    def _wanted(self, name: str) -> bool:
        return self.sources[name].goes_on or not self.kept(name)

    def _one(self, name: str, source: Source, minutes: float) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        self.work.mkdir(parents=True, exist_ok=True)
        for command in source.commands[self.size]:
            words = self.words(command, minutes)
            if command.makes is not None and Path(command.makes.format(work=self.work)).exists():
                continue
            write_message(f"{name}: {' '.join(command.words)}")
            status = self.run(words)
            if status == 130:
                raise KeyboardInterrupt
            if status != 0:
                self.problems[name] = f"{name}: {command.words[0]} exited with status {status}"
                return


def read(name: str, folders: Sequence[Path]) -> tuple[Mapping[str, Any], Path] | None:
    """Return a result and its path from the first folder that has it; raise UserError for a damaged file."""
    for folder in folders:
        path = folder / f"{name}.json"
        if path.is_file():
            try:
                return json.loads(path.read_bytes()), path
            except ValueError as error:
                raise UserError(f"{path} is not valid JSON ({error}); delete it and run again") from error
    return None
