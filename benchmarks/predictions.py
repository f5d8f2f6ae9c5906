"""Predicted updates compared with measured updates.

Knows: the command's options, tables, where results go. Does not know: how anything is measured.
"""

from __future__ import annotations

from pathlib import Path

from cotswold.bench.measure import document
from cotswold.cli.support.tables import create_result_folder, require_positive, table, write_result
from cotswold.host import available_bytes
from lib.command import Json, command, main
from lib.predictions.comparison import MEDIAN_MOST, WORST_MOST
from lib.predictions.comparison import predictions as measured


def predictions(*, rounds: int = 5, out: Path | None = None, json_: Json = False) -> None:
    """Compare predicted with measured updates: 1, 2 and 4 ranks; links of 10 and 1 Gbit/s, and unshaped.

    The machine is described like by `cotswold bench machine`. Needs root, for hosts in network namespaces.
    Takes some minutes. Example:

      python benchmarks/predictions.py --out benchmarks/results

    Parameters
    ----------
    rounds
        Number of updates of each.
    out
        Directory for predictions.json.
    json_
        Print JSON.
    """
    create_result_folder(out)
    found = document(
        "predictions", command(), **measured(require_positive(rounds, "--rounds"), available_bytes())
    )
    write_result(found, "predictions", out, json_)
    if json_:
        return
    shown = ("network", "grid", "link", "measured_seconds", "predicted_seconds", "error")
    rows = found["rows"]
    assert isinstance(rows, list), "a result has rows"
    table("an update", [{name: row[name] for name in shown} for row in rows], sections="link")
    print(f"median error {found['median_error']} (at most {MEDIAN_MOST} allowed)")
    print(f"worst error {found['worst_error']} (at most {WORST_MOST} allowed)")


if __name__ == "__main__":
    main(predictions)
