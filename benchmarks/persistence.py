"""Cost for training if servers save their state on disk.

Knows: the command's options, the plan of cells, tables, where results go. Does not know: how anything is
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
from lib.persistence import LEAST_WANTED, PersistencePair
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
    """Measure samples per second of replicas whose servers save to disks, compared with servers without
    disks.

    Both sets of replicas exist all the time and train alternately: with, without, without, with. One such
    round is a cell; each is kept when it is finished, and the same command resumes.

    Example: python benchmarks/persistence.py --folder /var/tmp

    Parameters
    ----------
    recipe
        Recipe with labels; without MNIST, adam-mnist uses random images of the same shape.
    copies
        Numbers of copies of each part of the parameters.
    servers
        Number of parameter servers.
    workers
        Number of replicas.
    flush
        The recipe's flush_seconds.
    rounds
        Cells for each number of copies.
    seconds
        Seconds of each of the four parts of a cell.
    minutes
        Minutes after which no cell may end; a cell that would take longer does not start.
    folder
        Directory of the disks [the folder of temporary files, which may be in memory].
    set
        Override a field of the recipe, such as training.push_every=4; may be given again.
    stores
        Directory of prepared samples.
    out
        Directory for persistence.json (the finished cells) and persistence.svg.
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
        raise UserError(f"{folder} is not a directory; create it or use another --folder")
    with PersistencePair(read, open_store(read, stores), folder, flush) as persisting:

        def plan() -> Iterator[tuple[str, Callable[[], Document]]]:
            for count in counts:
                for turn in range(require_positive(rounds, "--rounds")):
                    yield f"{count} {turn}", lambda count=count: persisting.cell(count, seconds)  # type: ignore[misc]  # mypy and defaults

        cells.run(plan())
    found = cells.leave()
    replace_file(out / f"{NAME}.svg", drawing(found).encode())
    write_result(found, NAME, None, json_)
    if not json_:
        table("samples per second", rows(found))


def summary(cells: dict[str, Document]) -> Document:
    """Return the spreads of both rates and of their ratio for each number of copies."""
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
    """Return the table of a summary."""
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
