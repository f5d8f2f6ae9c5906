"""The Bunyip experiment: table 1 of Aberdeen, Baxter and Edwards 2000, with several methods and losses.

Knows: the command's options, the order of the cells, where results go. Does not know: how a cell is trained,
evaluated or shown.
"""

from __future__ import annotations

import json
import signal
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any, get_args

from cyclopts import Parameter

from cotswold.bench.measure import document
from cotswold.cli.support.tables import create_result_folder, table, write
from cotswold.data.datasets.japanese_ocr import JapaneseSet
from cotswold.errors import UserError
from cotswold.files import replace_file
from cotswold.ui.terminal import write_message
from lib.bunyip.cells import Cell, Experiment, Frequencies, Loss, Method, read
from lib.bunyip.error_rates import judge
from lib.bunyip.page import drawing, page
from lib.bunyip.paper import SIZES
from lib.bunyip.summary import Prices, row, summary
from lib.command import Flag, Json, Overrides, command, main

Several = Annotated[list[str] | None, Parameter(negative=())]


def bunyip(
    folder: Path = Path("japanese-ocr"),
    *,
    equal: Path | None = None,
    run: Path = Path("runs/bunyip"),
    patterns: Annotated[list[int] | None, Parameter(negative=())] = None,
    method: Several = None,
    loss: Several = None,
    flops: float = 1e15,
    turn: float | None = None,
    set: Overrides = None,
    threads: int | None = None,
    hardware_dollars: float | None = None,
    rent_dollars_per_hour: float | None = None,
    page_only: Flag = False,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Train table 1 of the paper for each number of patterns, method and loss, and write one page about it.

    Every cell is a run of the recipe bunyip-japanese-ocr. It ends when it has used its FLOPs, or earlier by
    validation. The two held-out sets are evaluated once, at the end. (The paper stopped on its test set.)
    Ctrl-C and SIGTERM save and exit; a kill loses the work after the last checkpoint; the same command
    resumes. Examples:

      cotswold data make japanese-ocr
      python benchmarks/bunyip.py japanese-ocr                         # 12 cells, 1 PFLOP each: hours
      python benchmarks/bunyip.py japanese-ocr --flops 3e13 --patterns 343800
      cotswold data make japanese-ocr japanese-ocr-equal --frequencies equal
      python benchmarks/bunyip.py japanese-ocr --equal japanese-ocr-equal --rent-dollars-per-hour 0.17

    Parameters
    ----------
    folder
        Set written by `cotswold data make japanese-ocr`.
    equal
        Second set, with equal frequencies; its cells follow the others.
    run
        Directory of runs, stores, finished cells and the page, bunyip.html.
    patterns
        Number of training patterns; may be given again [343800, 611200 and 1833600].
    method
        cg or lbfgs; may be given again [both].
    loss
        squared_error or cross_entropy; may be given again [both].
    flops
        Budget of a cell. A larger budget continues the runs of a smaller one.
    turn
        FLOPs of a turn. Cells take turns, so that they can be compared at any time [a tenth of the budget].
    set
        Override a field of the recipe, as in training.sample_fraction=0.25; may be given again.
    threads
        Threads of computation [all cores granted to this process].
    hardware_dollars
        Price of the machine; gives cents per MFLOP/s.
    rent_dollars_per_hour
        Rent of the machine; gives dollars per run.
    page_only
        Train nothing; write the page and the results of the finished cells.
    out
        Directory for bunyip.json and bunyip.svg.
    json_
        Print JSON.
    """
    sets: dict[Frequencies, Path] = {"natural": folder, **({} if equal is None else {"equal": equal})}
    made = {name: JapaneseSet(path) for name, path in sets.items()}
    _check(made)
    if flops <= 0 or (turn is not None and turn <= 0):
        raise UserError("--flops and --turn must be numbers of FLOPs above 0, such as 1e15")
    cells = [
        Cell(frequencies, each, how, what)
        for frequencies, each, how, what in product(
            made,
            patterns or SIZES,
            _among("method", method, get_args(Method)),
            _among("loss", loss, get_args(Loss)),
        )
    ]
    create_result_folder(out)
    experiment = Experiment(sets, run, flops, _settings(set), threads)
    if not page_only:
        # SIGTERM acts like Ctrl-C: the current iteration is dropped, everything is saved
        signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
        for cell, target in _turns(experiment, cells, turn or flops / 10):
            _train(experiment, cell, target, made)
            _leave(experiment, cells, made, None, Prices(hardware_dollars, rent_dollars_per_hour))
    found = _leave(experiment, cells, made, out, Prices(hardware_dollars, rent_dollars_per_hour))
    if json_:
        print(json.dumps(found))
    elif found["cells"]:
        table("errors on held-out samples", [row(each) for each in found["cells"]])
    write_message(f"the page is {run / 'bunyip.html'}")


def _turns(experiment: Experiment, cells: list[Cell], turn: float) -> Iterator[tuple[Cell, float]]:
    """Yield the cells in training order, with the FLOPs up to which each trains."""
    target = 0.0
    while target < experiment.flops:
        target = min(target + turn, experiment.flops)
        for cell in cells:
            is_last = target == experiment.flops  # a cell that has used its budget is only evaluated
            if experiment.kept(cell) is None and (is_last or experiment.used(cell) < target):
                yield cell, target


def _train(experiment: Experiment, cell: Cell, target: float, made: dict[Frequencies, JapaneseSet]) -> None:
    write_message(f"{cell.name}: up to {target:.3g} FLOP")
    run = experiment.advance(cell, target)
    if experiment.ended(run):
        judged: dict[str, object] = {
            name: judge(run, each, experiment.threads)
            for name, each in made.items()
            if name in {"natural", cell.frequencies}
        }
        experiment.keep(cell, run, judged)


def _leave(
    experiment: Experiment,
    cells: list[Cell],
    made: dict[Frequencies, JapaneseSet],
    out: Path | None,
    prices: Prices,
) -> dict[str, Any]:
    """Write the page and, with ``out``, the results."""
    kept = [found for cell in cells if (found := read(experiment.cell_file(cell))) is not None]
    begun = [found for cell in cells if (found := experiment.begun(cell)) is not None]
    told = summary(kept, begun, prices)
    found = document("bunyip", command(), **told)
    text = page(found, made["natural"])
    experiment.folder.mkdir(parents=True, exist_ok=True)
    replace_file(experiment.folder / "bunyip.html", text.encode())
    if out is not None:
        write(found, "bunyip", out)
        replace_file(out / "bunyip.svg", drawing(found).encode())
    return found


def _among(name: str, given: list[str] | None, known: tuple[Any, ...]) -> tuple[Any, ...]:
    for each in given or ():
        if each not in known:
            raise UserError(f"--{name} {each} is none of {', '.join(known)}")
    return tuple(given) if given else known


def _settings(given: list[str] | None) -> dict[str, object]:
    found: dict[str, object] = {}
    for each in given or ():
        name, mark, value = each.partition("=")
        if not mark:
            raise UserError(
                f"--set {each} has no value; write FIELD=VALUE, as in training.sample_fraction=0.25"
            )
        try:
            found[name] = tomllib.loads(f"value = {value}")["value"] if value else None
        except tomllib.TOMLDecodeError:
            found[name] = value
    return found


def _check(made: dict[Frequencies, JapaneseSet]) -> None:
    """Raise UserError for a set whose frequencies are not those of its option."""
    for name, each in made.items():
        if each.request.frequencies != name:
            raise UserError(
                f"{each.path} has {each.request.frequencies} frequencies; make the other set with "
                f"`cotswold data make japanese-ocr FOLDER --frequencies {name}`"
            )


if __name__ == "__main__":
    main(bunyip)
