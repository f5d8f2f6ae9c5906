"""Start time of a worker: forked from a process that has torch, compared with a Python that imports torch.

Knows: the command's options, tables, where results go. Does not know: how anything is measured.
"""

from __future__ import annotations

from pathlib import Path

from cotswold.bench.measure import document
from cotswold.cli.support.tables import require_positive, write_result
from lib.command import Json, command, main, spreads
from lib.processes import processes as measured


def processes(*, rounds: int = 15, out: Path | None = None, json_: Json = False) -> None:
    """Measure the start of a worker, and the time until its death is reported.

    Example: python benchmarks/processes.py

    Parameters
    ----------
    rounds
        Rounds for each.
    out
        Directory for processes.json.
    json_
        Print JSON.
    """
    found = document("processes", command(), **measured(require_positive(rounds, "--rounds")))
    write_result(found, "processes", out, json_)
    if not json_:
        spreads("seconds", found["spread_seconds"])


if __name__ == "__main__":
    main(processes)
