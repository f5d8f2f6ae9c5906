"""Simulation of the largest network of Chilimbi et al. 2014 (over 2 billion connections) on 62 machines.

Knows: the command's options, tables, where results go. Does not know: how anything is simulated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cotswold.bench.measure import document
from cotswold.cli.support.tables import create_result_folder, require_positive, table, write_result
from lib.command import Json, command, main, rows
from lib.predictions.adam_cluster import simulated


def adam_cluster(*, lives: int = 200, out: Path | None = None, json_: Json = False) -> None:
    """Predict ten days of the paper's 62 machines, and how much its standby machines save.

    Each replica divides the network among its machines. 10 parameter servers receive factors of full layers
    and deltas of convolutions, event by event; 4 image servers feed the replicas. The paper says that 48
    training machines are 16 replicas of 4, which would be 64 machines; so 12 of 4, 16 of 3 and 16 of 4 are
    all simulated. Figure 11 with 20 servers, an epoch for each size of figure 12, and random failures with
    and without the standby machines of section 4.2 are simulated too. No constant is fitted; nothing is
    measured. Takes half a minute.

    Example:

      python benchmarks/adam_cluster.py --out benchmarks/results

    Parameters
    ----------
    lives
        Number of ten-day periods simulated for each rate of failures.
    out
        Directory for adam-cluster.json.
    json_
        Print JSON.
    """
    create_result_folder(out)
    found: Any = document("adam-cluster", command(), **simulated(require_positive(lives, "--lives")))
    write_result(found, "adam-cluster", out, json_)
    if json_:
        return
    table("62 machines, ten days", rows(found["clusters"]))
    table("figure 11: 20 servers", rows(found["replicas"]))
    table("figure 12", rows(found["figure 12"]))
    table("machines that fail, ten days", rows(found["standby"]["rows"]))


if __name__ == "__main__":
    main(adam_cluster)
