"""Reproduce a paper's tables and figures, next to the stated figures, on one page.

Knows: the command's options, where results and the page go. Does not know: any paper, any measurement.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from cotswold.cli.support.tables import create_result_folder, table
from cotswold.errors import MachineError, UserError
from cotswold.files import disk_errors, replace_file
from cotswold.ui.terminal import write_message
from lib.command import Flag, command, main
from lib.papers.aberdeen2000 import PAPER as ABERDEEN
from lib.papers.chilimbi2014 import PAPER as CHILIMBI
from lib.papers.coates2013 import PAPER as COATES
from lib.papers.dean2012 import PAPER as DEAN
from lib.papers.page import Given, page, told
from lib.papers.part import Paper
from lib.papers.runner import BENCHMARKS, PaperRunner, read
from lib.papers.sources import SIZES, Size, size_of

PAPERS: dict[str, Paper] = {paper.name: paper for paper in (COATES, DEAN, ABERDEEN, CHILIMBI)}


def papers(
    paper: Literal["coates2013", "dean2012", "aberdeen2000", "chilimbi2014"],
    /,
    *,
    hours: float = 1.0,
    only: Annotated[list[str] | None, Parameter(negative=())] = None,
    out: Path = Path("papers"),
    earlier: Path = BENCHMARKS / "results",
    no_earlier: Flag = False,
    json_: Annotated[Flag, Parameter(name="--json")] = False,
) -> None:
    """Reproduce the tables and figures of a paper, as far as the hours allow, and write one page.

    Every table and figure shows Cotswold's result next to the paper's statement, or the reason why it was
    left out. Measurements and simulations are kept as JSON, one file per script; the same command resumes,
    after Ctrl-C and days later. With less than 2 hours experiments are small, from 12 hours on they are
    complete; each size has its own results. Examples:

      python benchmarks/papers.py chilimbi2014 --hours 0        # only the page of existing results
      python benchmarks/papers.py coates2013 --hours 1
      python benchmarks/papers.py dean2012 --hours 24
      python benchmarks/papers.py aberdeen2000 --hours 3 --only bunyip-figures

    Parameters
    ----------
    paper
        coates2013, dean2012, aberdeen2000 or chilimbi2014.
    hours
        Time limit; 0 only writes the page of existing results, of the largest size with results.
    only
        Name of a result to make, as in bunyip-figures; may be given again [all of the paper].
    out
        Directory in which OUT/PAPER/SIZE/ holds results, runs and the page, PAPER.html.
    earlier
        Directory of earlier results, used if this command has made none; the page marks them.
    no_earlier
        Show only results of this command.
    json_
        Print JSON: each table and figure, the paper's statement, the findings.
    """
    if hours < 0:
        raise UserError(f"--hours {hours:g} must be at least 0; 0 only writes the page")
    chosen = PAPERS[paper]
    needed = list(dict.fromkeys(name for part in chosen.parts for name in part.needs))
    unknown = sorted({*(only or [])} - {*needed})
    if unknown:
        raise UserError(f"--only {unknown[0]} is not a result of {paper}; use {', '.join(sorted(needed))}")
    size = size_of(hours) if hours else _largest(out / paper, needed)
    folder = out / paper / size
    create_result_folder(folder)
    running = PaperRunner(folder, folder / "work", size, hours)
    folders = [folder] if no_earlier else [folder, earlier]

    def given() -> dict[str, Given]:
        there = {}
        for name in needed:
            found = read(name, folders)
            if found is not None:
                there[name] = Given(found[0], found[1].parent != folder)
        return there

    def write() -> None:
        words = {
            name: f"python benchmarks/papers.py {paper} --hours {hours or 1:g} --only {name}"
            for name in needed
        }
        text = page(chosen, given(), list(running.problems.values()), command(), words)
        place = folder / f"{paper}.html"
        with disk_errors(place, MachineError, "free some"):
            replace_file(place, text.encode())

    if hours:
        running.all([name for name in needed if only is None or name in only], write)
    write()
    parts = told(chosen, given())
    if json_:
        print(
            json.dumps({"paper": paper, "command": command(), "parts": parts, "problems": running.problems})
        )
    else:
        table(chosen.title, [{name: each[name] for name in ("part", "title", "is")} for each in parts])
    write_message(f"the page is {folder / f'{paper}.html'}")


def _largest(folder: Path, needed: Sequence[str]) -> Size:
    """Return the largest size with a result, or the smallest if there is none."""
    for size in reversed(SIZES):
        if any((folder / size / f"{name}.json").is_file() for name in needed):
            return size
    return SIZES[0]


if __name__ == "__main__":
    main(papers)
