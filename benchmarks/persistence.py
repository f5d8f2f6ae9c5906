"""What it costs training that servers keep what they know on disk.

Knows: the words of the command, the plan of cells, tables, where results go. Does not know: how anything is
measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cotswold.bench.measure import Document, Spread
from cotswold.cli.support.tables import require_positive, table, write_result
from cotswold.errors import UserError
from cotswold.files import replace_file
from cotswold.training import open_store
from lib.cells import Cells, number
from lib.command import Json, Overrides, main
from lib.mnist import recipe_here
from lib.persistence import LEAST_WANTED, Persisting
from lib.persistence_plots import drawing

NAME = "persistence"


def persistence(
    recipe: str = "adam-mnist",
    *,
    copies: str = "1,3",
    servers: int = 3,
    workers: int = 2,
    flush: float = 1.0,
    rounds: int = 7,
    seconds: float = 10.0,
    minutes: float = 30.0,
    folder: Path | None = None,
    set: Overrides = None,
    stores: Path = Path("stores"),
    out: Path = Path("benchmarks/results"),
    json_: Json = False,
) -> None:
    """Samples a second of replicas whose servers save to disks, beside the same without disks.

    Both are there all the time, and learn by turns: with, without, without, with. A round of that is a cell;
    each is kept when it is finished, and the same command goes on.

    Example: python benchmarks/persistence.py --folder /var/tmp

    Parameters
    ----------
    recipe
        A recipe with labels; adam-mnist without MNIST has drawn images of the same shape.
    copies
        Numbers of copies of each part of the parameters.
    servers
        Parameter servers.
    workers
        Replicas.
    flush
        The recipe's flush_seconds.
    rounds
        Cells of each number of copies.
    seconds
        How long each of the four parts of a cell is measured.
    minutes
        No cell begins that would end later.
    folder
        Where disks are; the folder for temporary files by default, which may be in memory.
    set
        Overrides a field of the recipe, such as training.push_every=4; may be given again.
    stores
        Where samples are prepared.
    out
        A directory for persistence.json, which has the finished cells, and persistence.svg.
    json_
        Print JSON.
    """
    overrides = [
        *("training.strategy=downpour", "training.epochs=1000000"),
        *(f"cluster.workers={workers}", f"cluster.servers={servers}", *(set or [])),
    ]
    read = recipe_here(recipe, stores, overrides)
    counts = [require_positive(int(each), "--copies") for each in copies.split(",")]
    settings: Document = {"recipe": read.name, "set": set or [], "seconds": seconds, "flush_seconds": flush}
    cells = Cells(NAME, out, minutes, summary, **settings, servers=servers, workers=workers)
    if folder is not None and not folder.is_dir():
        raise UserError(f"{folder} is no directory; make it, or give another to --folder")
    with Persisting(read, open_store(read, stores), folder, flush) as persisting:

        def plan() -> Iterator[tuple[str, Callable[[], Document]]]:
            for count in counts:
                for turn in range(require_positive(rounds, "--rounds")):
                    yield f"{count} {turn}", lambda count=count: persisting.cell(count, seconds)  # type: ignore[misc]  # mypy and defaults

        cells.run(plan())
    found = cells.leave()
    replace_file(out / f"{NAME}.svg", drawing(found).encode())
    write_result(found, NAME, None, json_)
    if not json_:
        table("samples a second", rows(found))


def summary(cells: dict[str, Document]) -> Document:
    """Of each number of copies the spreads of both rates and of their ratio."""
    found: Document = {}
    for copies in sorted({int(number(cell, "copies")) for cell in cells.values()}):
        own = [cell for cell in cells.values() if cell["copies"] == copies]
        spreads = {
            name: Spread.from_samples([number(cell, name) for cell in own]).as_dict()
            for name in ("with", "without", "ratio", "longest_window_seconds")
        }
        found[str(copies)] = {**spreads, "bar": LEAST_WANTED, "rounds": len(own)}
    return found


def rows(found: Document) -> list[Document]:
    """The table of a summary."""
    told: Any = found["summary"]
    return [
        {
            "copies": copies,
            "without disks": each["without"]["median"],
            "with": each["with"]["median"],
            "ratio": each["ratio"]["median"],
            "quartiles": f"{each['ratio']['lower']:.3f} to {each['ratio']['upper']:.3f}",
            "bar": each["bar"],
            "rounds": each["rounds"],
            "longest window, s": each["longest_window_seconds"]["greatest"],
        }
        for copies, each in told.items()
    ]


if __name__ == "__main__":
    main(persistence)
