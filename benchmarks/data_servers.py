"""Data servers compared with torch's DataLoader, Ray Data and the tf.data service.

Knows: the command's options, the order of the cells. Does not know: how batches are delivered.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from cotswold.bench.measure import Document
from cotswold.cli.support.tables import require_positive, table, write_result
from cotswold.errors import UserError
from cotswold.files import replace_file
from cotswold.ui.terminal import write_message
from lib.cells import Cells, Plan
from lib.command import Json, main
from lib.data_servers.cache import cached
from lib.data_servers.kills import trained
from lib.data_servers.plots import drawing
from lib.data_servers.subject import ALONE, ELSEWHERE, IN_PROCESS, OURS, SUBJECTS, Bench
from lib.data_servers.summary import best_workers, median_rate, single_rate, summary

NAME = "data-servers"
TRIED = {OURS: (1, 2), ALONE: (0,), "torch DataLoader": (1, 2), "Ray Data": (1, 2)}
"""Numbers of workers. A DataLoader without workers runs the transforms in the trainer's process."""
SURPLUS = 1.2
"""Rate of the pool over the rate of its trainer, when waiting is measured."""
DEMAND = 0.8
"""Rate of the trainer over the rate of one server, when the other server is killed."""
KILLED_SECONDS, KILLED_EVERY = 65.0, 20.0


def data_servers(
    *,
    subject: Annotated[list[str] | None, Parameter(negative=())] = None,
    baselines: Path | None = None,
    rounds: int = 3,
    kills: int = 0,
    warm_seconds: float = 1.5,
    seconds: float = 4.0,
    minutes: float = 60.0,
    stores: Path = Path("stores"),
    out: Path = Path("benchmarks/results"),
    json_: Json = False,
) -> None:
    """Measure data servers: samples per second and core, memory, the trainer's waiting time, the cache,
    kills.

    All loaders apply the same transforms to the same images with the same functions: Cotswold's, called as a
    library. The tf.data service uses TensorFlow's operation, because a NumPy function cannot leave its
    process. A Python that cannot import Cotswold with PyTorch uses NumPy. First each loader is tried once
    with every number of workers. Then rounds alternate between the loaders, each with its best number. Then
    they run again with a trainer that takes their rate divided by 1.2. Then the cache: the cost of a hit
    compared with a copy of the same bytes, and whether its bound holds. With --kills, a trainer takes 0.8 of
    the rate of one server from two servers, and one of them is killed every 20 s. A cell is kept when it is
    finished; the same command resumes.

    Examples:

      python benchmarks/data_servers.py --minutes 10
      python benchmarks/data_servers.py --baselines /path/to/python --subject mnist
      python benchmarks/data_servers.py --subject caltech --kills 2

    Parameters
    ----------
    subject
        mnist, mnist-256 (batches of 256), mnist-elastic or caltech; may be given again [all].
    baselines
        Path of a Python with ray[data] and tensorflow; without it these loaders are left out, with a notice.
    rounds
        Rounds for each loader.
    kills
        Number of 65 s trainings with kills, and of as long trainings without.
    warm_seconds
        Seconds of warm-up of a case.
    seconds
        Measured seconds of a case.
    minutes
        Minutes after which no cell may end; a cell that would take longer does not start.
    stores
        Directory of prepared samples.
    out
        Directory for data-servers.json (the finished cells) and data-servers.svg.
    json_
        Print JSON.
    """
    require_positive(rounds, "--rounds")
    names = subject or list(SUBJECTS)
    if unknown := sorted(set(names) - set(SUBJECTS)):
        raise UserError(f"--subject {', '.join(unknown)} is unknown; choose from {', '.join(SUBJECTS)}")
    bench = Bench(stores, baselines, warm_seconds, seconds)
    cells = Cells(NAME, out, minutes, summary, warm_seconds=warm_seconds, seconds=seconds)
    whos = [who for who in (*IN_PROCESS, *ELSEWHERE) if _is_here(bench, who)]
    is_whole = cells.run(_plan(cells, bench, names, whos, rounds, kills))
    found = cells.leave()
    replace_file(out / f"{NAME}.svg", drawing(found).encode())
    write_result(found, NAME, None, json_)
    if not json_:
        _show(found)
    if not is_whole:
        write_message("some cells are not measured yet")


def _is_here(bench: Bench, who: str) -> bool:
    why = bench.lacks(who)
    if why:
        write_message(f"{who} is left out: {why}")
    return not why


def _plan(cells: Cells, bench: Bench, names: list[str], whos: list[str], rounds: int, kills: int) -> Plan:
    for name in names:
        subject = SUBJECTS[name]
        its = [who for who in whos if who != "tf.data service" or subject.transform == "moves"]
        for who in its:
            for workers in TRIED.get(who, (1, 2)):
                yield f"tune: {name}: {who}: {workers}", partial(bench.fed, subject, who, workers)
        best = {who: best_workers(cells.found, name, who) or 0 for who in its}
        for number in range(rounds):
            for who in _turned(its, number):
                yield f"fed: {name}: {who}: {number}", partial(bench.fed, subject, who, best[who])
        for number in range(rounds):
            for who in _turned([each for each in its if each != ALONE], number):
                rate = median_rate(cells.found, name, who)
                assert rate is not None, "it was measured before"
                pause = SURPLUS * subject.batch / rate
                yield (
                    f"starving: {name}: {who}: {number}",
                    partial(bench.fed, subject, who, best[who], pause),
                )
        for number in range(rounds):
            yield f"cache: {name}: {number}", partial(_cached, bench, name)
        for number in range(kills):
            for every in (0.0, KILLED_EVERY) if number % 2 == 0 else (KILLED_EVERY, 0.0):
                step = subject.batch / (DEMAND * single_rate(cells.found, name))
                yield f"killed: {name}: {every:g}: {number}", partial(_trained, bench, name, step, every)


def _cached(bench: Bench, name: str) -> Document:
    subject = SUBJECTS[name]
    return cached(subject.store(bench.stores), subject.batch)


def _trained(bench: Bench, name: str, step: float, every: float) -> Document:
    subject = SUBJECTS[name]
    return trained(subject.store(bench.stores), subject.tables, subject.batch, step, KILLED_SECONDS, every)


def _turned(whos: list[str], number: int) -> list[str]:
    first = number % len(whos)
    return whos[first:] + whos[:first]


def _show(found: Document) -> None:
    told: Any = found["summary"]
    if told["rows"]:
        table("fed", [_flat(row) for row in told["rows"]], sections="subject")
    if told["cache"]:
        table("cache", told["cache"])
    if told["killed"]:
        table("one of two servers killed", told["killed"])
    if told["bars"]:
        table("bars", [{**each, "met": "yes" if each["met"] else "no"} for each in told["bars"]])


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the medians of its spreads."""
    return {
        name.replace("_1_2", "_1/1.2"): value["median"] if isinstance(value, dict) else value
        for name, value in row.items()
    }


if __name__ == "__main__":
    main(data_servers)
