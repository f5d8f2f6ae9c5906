"""A paper's tables and figures again: ours beside what it states, on one page.

Knows: the words of the command, where results and the page go. Does not know: any paper, any measurement.
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
from lib.papers.runner import BENCHMARKS, Running, read
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
    """Redo the tables and figures of a paper, as far as some hours allow, and write one page.

    Every table and figure has ours beside what the paper states, or says why it was left out. What is
    measured and simulated is left as JSON, one file a script; the same command goes on where it stopped,
    after Ctrl-C and days later. With less than 2 hours experiments are small, from 12 on they are whole;
    each size has results of its own. Examples:

      python benchmarks/papers.py chilimbi2014 --hours 0        # the page alone, of what is there
      python benchmarks/papers.py coates2013 --hours 1
      python benchmarks/papers.py dean2012 --hours 24
      python benchmarks/papers.py aberdeen2000 --hours 3 --only bunyip-figures

    Parameters
    ----------
    paper
        coates2013, dean2012, aberdeen2000 or chilimbi2014.
    hours
        How long to measure; 0 writes the page of what is there, of the largest size that has results.
    only
        Names of results to make, as in bunyip-figures; all of the paper by default. May be given again.
    out
        Where OUT/PAPER/SIZE/ gets results, runs and the page, PAPER.html.
    earlier
        Results from before, for what this command has not made; the page says which.
    no_earlier
        Show what this command has made alone.
    json_
        Print JSON: each table and figure, what the paper states, what was found.
    """
    if hours < 0:
        raise UserError(f"--hours {hours:g} is no time; give 0 for the page alone, or more")
    chosen = PAPERS[paper]
    needed = list(dict.fromkeys(name for part in chosen.parts for name in part.needs))
    unknown = sorted({*(only or [])} - {*needed})
    if unknown:
        raise UserError(f"--only {unknown[0]} is no result of {paper}; there are {', '.join(sorted(needed))}")
    size = size_of(hours) if hours else _largest(out / paper, needed)
    folder = out / paper / size
    create_result_folder(folder)
    running = Running(folder, folder / "work", size, hours)
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
    """The largest size that has a result; the smallest where none has."""
    for size in reversed(SIZES):
        if any((folder / size / f"{name}.json").is_file() for name in needed):
            return size
    return SIZES[0]


if __name__ == "__main__":
    main(papers)
