"""The largest network that this machine trains asynchronously: as gradients, as factors and as deltas.

Knows: the words of the command, which cell comes when, tables. Does not know: how replicas are measured.
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
"""Of the limit, what the first network may take."""
SUPPOSED_BYTES = 110.0
"""Of a weight in it. 45 to 106 have been seen: it depends on how many pushes and pulls are under way."""
ROOM = 0.88
"""Of the limit, what the networks after it are for."""
STOPPED_AT = 0.95
"""Of the limit: a network that takes more is stopped, before it takes all."""
SMALLER = 0.8
"""Of the weights of a stopped network, how many the next has."""
NETWORKS = 4
LEAST_GAIN = 1.1
"""In weights, for which another network is tried."""
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
    """The largest fully connected network that a replica and its server train within so much memory.

    Two layers of as many units, of which the second has nearly all weights. The least network shows what
    processes take for themselves, one of a quarter of the limit how many bytes a weight takes besides,
    which depends on how many pushes and pulls are under way; each further one has as many weights as fit
    by the one before. One that comes near the limit is stopped, and the next is smaller. Three ways to
    push: gradients; factors, which are k (M + N) numbers for k samples of a layer of M x N weights;
    deltas, what the replica has moved its own weights by. Seconds a step, bytes that are pushed and
    pulled, and the most memory that all processes had at once, shared memory once. A cell is one network;
    each is kept when it is finished; the same command goes on. Example:

      python benchmarks/largest_async.py --gigabytes 6

    Parameters
    ----------
    gigabytes
        Memory of all processes together, 10^9 bytes, which is not exceeded.
    steps
        Steps that are measured, after one that is not.
    batch
        Samples in a mini-batch.
    sends
        gradient, factors or deltas; all by default. May be given again.
    minutes
        No cell begins that would end later.
    out
        A directory for largest-async.json, which has the finished cells.
    json_
        Print JSON.
    """
    if gigabytes < LEAST_GIGABYTES:
        raise UserError(f"--gigabytes {gigabytes:g} is too little; give {LEAST_GIGABYTES:g} or more")
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
    """Units of the network to be tried after these; 0 for none."""
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
    """Of all processes together, besides what they take for themselves."""
    return (number(cell, "peak_bytes") - number(least, "peak_bytes")) / number(cell, "parameters")


def summary(cells: dict[str, Document]) -> Document:
    """The largest network of each form, and what was said of them in a sentence."""
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
        f"{most['parameters'] / 1e6:.0f} million weights here, sent as {most['sends']}, within "
        f"{most['peak_bytes'] / 1e9:.1f} GB, {most['step_seconds']:.1f} s a step"
    )
    note = "Memory is that of the replica, the server and the program that starts them, shared memory once."
    if {"gradient", "factors"} <= by.keys():
        ratio = by["gradient"]["pushed_bytes_a_weight"] / by["factors"]["pushed_bytes_a_weight"]
        note += f" A weight's gradient is {ratio:.0f} times the bytes of its factors."
    each = {name: rounded(bytes_a_weight(cells[f"least; {name}"], cell)) for name, cell in by.items()}
    return {"rows": found, "said": said, "note": note, "bytes_a_weight": each}


if __name__ == "__main__":
    main(largest_async)
