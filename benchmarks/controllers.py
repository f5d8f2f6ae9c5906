"""Load of a controller with 10 to 1,000 servers, each with a hundred buckets of three copies.

Knows: the command's options, tables, where results and plots go. Does not know: how anything is measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from cotswold.bench.measure import document
from cotswold.cli.support.tables import require_positive, table, write_result
from cotswold.ui.terminal import progress_bar
from lib.command import Json, command, main
from lib.controller import BEATS_A_SECOND, BUCKETS_A_SERVER, COPIES, STATE_SECONDS, lives, summary
from lib.controller_plots import draw

SERVERS = (10, 30, 100, 300, 1000)


def controllers(
    *,
    servers: Annotated[list[int] | None, Parameter(negative=())] = None,
    seconds: int = 3,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Measure a controller's processor time: heartbeats, creation of buckets, death of a server, change of
    leader.

    Servers, metadata store and time are simulated; the controller is real. Each server is the primary of a
    hundred buckets and sends ten heartbeats per second. The table also counts transactions of the metadata
    store and the time that etcd would take for them. The exponent is the power of the number of servers with
    which a figure grows: 1 is linear. Example:

      python benchmarks/controllers.py --out benchmarks/results

    Parameters
    ----------
    servers
        Number of servers; may be given again [10, 30, 100, 300 and 1000].
    seconds
        Seconds of measured heartbeats.
    out
        Directory for controllers.json and controllers.svg.
    json_
        Print JSON.
    """
    sizes = [require_positive(each, "--servers") for each in servers or SERVERS]
    found = []
    with progress_bar("measuring", "sizes") as advance:
        for number, size in enumerate(sizes, 1):
            found.append(lives(size, require_positive(seconds, "--seconds")))
            advance(number, len(sizes))
    measured: dict[str, Any] = {
        "copies": COPIES,
        "buckets_a_server": BUCKETS_A_SERVER,
        "beats_a_second": BEATS_A_SECOND,
        "state_seconds_a_transaction": STATE_SECONDS,
        "rows": found,
        **summary(found),
    }
    result = document("controllers", command(), **measured)
    write_result(result, "controllers", out, json_)
    if out is not None:
        draw(result, out / "controllers.svg")
    if not json_:
        table("Processor seconds", measured["table"])
        if measured["exponents"]:
            table("Growth with the number of servers", [measured["exponents"]])


if __name__ == "__main__":
    main(controllers)
