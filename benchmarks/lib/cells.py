"""Long experiments in cells: each cell is kept when it is finished, and the same command resumes.

Knows: a JSON file, the time limit. Does not know: what a cell measures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from cotswold.bench.measure import Document, document
from cotswold.cli.support.tables import create_result_folder, write
from cotswold.errors import UserError
from cotswold.ui.terminal import write_message
from lib.command import command

Plan = Iterable[tuple[str, Callable[[], Document]]]
"""Names of cells and the function that measures each; may be a generator that reads earlier results."""
Summary = Callable[[dict[str, Document]], Document]
"""Summarizes all finished cells."""


class Cells:
    """The cells of an experiment in ``out``/``name``.json, which is rewritten after each new cell."""

    def __init__(self, name: str, out: Path, minutes: float, summary: Summary, **settings: object) -> None:
        """Load the finished cells.

        ``settings`` must be equal for cells to be comparable; raises UserError if the file has other
        settings.
        """
        if minutes <= 0:
            raise UserError(f"--minutes {minutes:g} leaves no time to measure; give more than 0")
        create_result_folder(out)
        self.found: dict[str, Document] = {}
        """Result of each finished cell."""
        self._name, self._out, self._summary = name, out, summary
        self._settings: Document = json.loads(json.dumps(settings))
        self._until = time.monotonic() + 60 * minutes
        self._longest = 0.0
        path = out / f"{name}.json"
        if path.is_file():
            kept = json.loads(path.read_bytes())
            if kept["settings"] != self._settings:
                others = _differences(kept["settings"], self._settings)
                raise UserError(
                    f"{path} has cells with other settings ({others}); use the same ones, or another --out"
                )
            self.found = kept["cells"]

    def run(self, plan: Plan) -> bool:
        """Measure the unfinished cells in order while there is time for one more (at least one).

        Return True if all cells are finished.
        """
        is_first = True
        for name, measure in plan:
            if name in self.found:
                continue
            left = self._until - time.monotonic()
            if not is_first and left < self._longest:
                write_message(f"{max(left, 0):.0f} s left, too few for a cell; the same command resumes")
                return False
            began, is_first = time.monotonic(), False
            write_message(f"{name} ...")
            self.found[name] = measure()
            self._longest = max(self._longest, time.monotonic() - began)
            self.leave()
        return True

    def leave(self) -> Document:
        """Write the file and return its contents."""
        kept = document(
            self._name,
            command(),
            settings=self._settings,
            cells=self.found,
            summary=self._summary(self.found),
        )
        write(kept, self._name, self._out)
        return kept


def _differences(kept: Document, given: Document) -> str:
    names = sorted(name for name in kept.keys() | given.keys() if kept.get(name) != given.get(name))
    return ", ".join(f"{name}: {kept.get(name)}, now {given.get(name)}" for name in names)


def number(cell: Document, name: str) -> float:
    """Return a numeric field of a cell."""
    value = cell[name]
    assert isinstance(value, int | float), f"{name} is a number"
    return float(value)
