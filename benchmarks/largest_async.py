"""The largest network that this machine trains asynchronously, sent as gradients, as factors and as deltas.

Knows: the command's options, the order of the cells, tables. Does not know: how replicas are measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from cotswold.bench.measure import Document, rounded
from cotswold.cli.support.tables import require_positive, table, write_result
from cotswold.errors import UserError
from lib.cells import Cells, Plan, number
from lib.command import Json, main, rows
from lib.downpour.largest import FORMS, measured, units_for

FIRST = 1 / 4
"""Fraction of the limit that the first network may take."""
SUPPOSED_BYTES = 110.0
"""Assumed bytes per weight of the first network.

Observed: 45 to 106, depending on the pushes and pulls in flight.
"""
ROOM = 0.88
"""Fraction of the limit that later networks should take."""
STOPPED_AT = 0.95
"""Fraction of the limit at which a network is stopped, before it takes all memory."""
SMALLER = 0.8
"""Weights of the network after a stopped one, as a fraction of its weights."""
NETWORKS = 4
LEAST_GAIN = 1.1
"""Least growth in weights that makes another network worth a trial."""
LEAST_GIGABYTES = 1.0
LEAST_UNITS = 16


def largest_async(
    *,
    gigabytes: float = 6.0,
    steps: int = 3,
    batch: int = 32,
    sends: Annotated[list[str] | None, Parameter(negative=())] = None,
    minutes: float = 60.0,
    out: Path = Path("benchmarks/results"),
    json_: Json = False,
) -> None:
    """Train the largest fully connected network that fits in a memory limit, with one replica and one server.

    Two layers of equal width, of which the second has nearly all weights. The least network shows the fixed
    memory of the processes. A network of a quarter of the limit shows the bytes per weight, which depend on
    the pushes and pulls in flight. Each later network has as many weights as should fit, judging by the one
    before. A network that comes near the limit is stopped, and the next is smaller. Three ways to push:
    gradients; factors, which are k (M + N) numbers for k samples of a layer of M x N weights; deltas, the
    change of the replica's own weights. The table has seconds per step, pushed and pulled bytes, and the peak
    memory of all processes together, with shared memory counted once. A cell is one network; each is kept
    when it is finished, and the same command resumes. Example:

        python benchmarks/largest_async.py --gigabytes 6

    Parameters
    ----------
    gigabytes
        Memory limit of all processes together, in 10^9 bytes.
    steps
        Measured steps, after one warm-up.
    batch
        Samples in a mini-batch.
    sends
        gradient, factors or deltas; may be given again [all].
    minutes
        Minutes after which no cell may end; a cell that would take longer does not start.
    out
        Directory for largest-async.json (the finished cells).
    json_
        Print JSON.
    """
    if gigabytes < LEAST_GIGABYTES:
        raise UserError(f"--gigabytes {gigabytes:g} is too little memory; give {LEAST_GIGABYTES:g} or more")
    require_positive(min(steps, batch), "--steps and --batch")
    forms = [name for name in FORMS if sends is None or name in sends]
    require_positive(len(forms), "--sends")
    settings = {"gigabytes": gigabytes, "steps": steps, "batch": batch, "networks": NETWORKS}
    cells = Cells("largest-async", out, minutes, summary, **settings)

    def plan() -> Plan:
        most = STOPPED_AT * 1e9 * gigabytes
        for name in forms:
            yield f"least; {name}", partial(measured, name, LEAST_UNITS, batch, steps)
            tried: list[Document] = []
            while units := next_units(1e9 * gigabytes, cells.found[f"least; {name}"], tried):
                key = f"network; {name}; {len(tried)}"
                yield key, partial(measured, name, units, batch, steps, most)
                tried.append(cells.found[key])

    cells.run(plan())
    found = cells.leave()
    write_result(found, "largest-async", None, json_)
    told: Any = found["summary"]
    if not json_ and told["rows"]:
        shown = (
            "sends",
            "parameters",
            "step_seconds",
            "pushed_bytes_a_step",
            "pulled_bytes_a_step",
            "peak_bytes",
        )
        table("the largest networks", [{name: row[name] for name in shown} for row in rows(told["rows"])])


def next_units(limit_bytes: float, least: Document, tried: Sequence[Document]) -> int:
    """Return the width of the next network to try, or 0 for none."""
    if len(tried) == NETWORKS:
        return 0
    own = number(least, "peak_bytes")
    if not tried:
        return units_for(FIRST * limit_bytes, SUPPOSED_BYTES)
    last = tried[-1]
    if last["is_stopped"]:
        return units_for(SMALLER * number(last, "parameters"), 1.0)
    if any(cell["is_stopped"] for cell in tried):
        return 0
    units = units_for(ROOM * limit_bytes - own, bytes_a_weight(least, last))
    return units if units**2 >= LEAST_GAIN * number(last, "units") ** 2 else 0


def bytes_a_weight(least: Document, cell: Document) -> float:
    """Return the bytes per weight of all processes together, without their fixed memory."""
    return (number(cell, "peak_bytes") - number(least, "peak_bytes")) / number(cell, "parameters")


def summary(cells: dict[str, Document]) -> Document:
    """Return the largest network of each form, and a sentence about them."""
    by: dict[Any, Any] = {}
    for key, cell in cells.items():
        if not key.startswith("network; ") or cell["is_stopped"]:
            continue
        largest = by.setdefault(cell["sends"], cell)
        by[cell["sends"]] = max(largest, cell, key=lambda each: number(each, "parameters"))
    found = list(by.values())
    if not found:
        return {"rows": [], "said": "not measured yet", "note": ""}
    most = max(found, key=lambda cell: int(cell["parameters"]))
    said = (
        f"{most['parameters'] / 1e6:.0f} million weights on this machine, sent as {most['sends']}, within "
        f"{most['peak_bytes'] / 1e9:.1f} GB, {most['step_seconds']:.1f} s per step"
    )
    note = "Memory of the replica, the server and their launcher together; shared memory counts once."
    if {"gradient", "factors"} <= by.keys():
        ratio = by["gradient"]["pushed_bytes_a_weight"] / by["factors"]["pushed_bytes_a_weight"]
        note += f" The gradient of a weight has {ratio:.0f} times the bytes of its factors."
    each = {name: rounded(bytes_a_weight(cells[f"least; {name}"], cell)) for name, cell in by.items()}
    return {"rows": found, "said": said, "note": note, "bytes_a_weight": each}


if __name__ == "__main__":
    main(largest_async)
