"""The network of over 2 billion connections of Chilimbi et al. 2014 on 62 machines: sizes, replicas, standby.

Knows: the words of the command, tables, where results go. Does not know: how anything is simulated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cotswold.bench.measure import document
from cotswold.cli.support.tables import create_result_folder, require_positive, table, write_result
from lib.command import Json, command, main, rows
from lib.predictions.adam_cluster import simulated


def adam_cluster(*, lives: int = 200, out: Path | None = None, json_: Json = False) -> None:
    """Predict what the paper's 62 machines do in ten days, and what their standby machines save.

    Replicas cut the network over machines; 10 parameter servers take factors of full layers and deltas of
    convolutions, event by event; 4 image servers feed them. The paper's 48 training machines are not 16
    replicas of 4, as it says, which would be 64: 12 of 4, 16 of 3 and 16 of 4 are all simulated. Also
    figure 11 with 20 servers, an epoch of each size of figure 12, and failures at random with the standby
    machines of section 4.2 and without. No constant is fitted; nothing is measured. Takes half a minute.
    Example:

      python benchmarks/adam_cluster.py --out benchmarks/results

    Parameters
    ----------
    lives
        Ten days that are simulated with failures, for each rate of them.
    out
        A directory for adam-cluster.json.
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
