"""The largest network that this machine trains asynchronously: as gradients, as factors and as deltas.

Knows: the words of the command, which cell comes when, tables. Does not know: how replicas are measured.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from cotswold.bench.measure import Document, rounded
from cotswold.cli.figures import at_least_one, leave, table
from cotswold.errors import UserError
from measures.cells import Cells, Plan, number
from measures.command import Json, main, rows
from measures.downpour.largest import FORMS, measured, units_for

TRIALS = (1 / 8, 1 / 3)
"""Parts of the limit that two networks are for by which it is found how many bytes a weight takes."""
SUPPOSED_BYTES = 60.0
"""Of a weight, in these."""
LEAST_GIGABYTES = 2.0
ROOM = 0.9
"""Of the limit; a larger network also has larger messages under way."""


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

    Two layers of as many units, of which the second has nearly all weights. First two smaller ones are
    trained, from which it is seen how many bytes all processes together take for a weight; then one that
    should fill nine tenths of the limit. Three ways to push: gradients; factors, which are k (M + N) numbers
    for k samples of a layer of M x N weights; deltas, what the replica has moved its own weights by. Seconds
    a step, bytes that are pushed and pulled, and the most memory that all processes had at once, shared
    memory once. A cell is one network; each is kept when it is finished; the same command goes on. Example:

      python benchmarks/largest_async.py --gigabytes 12

    Parameters
    ----------
    gigabytes
        Memory of all processes together, 10^9 bytes; the machine should have half as much again.
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
    at_least_one(min(steps, batch), "--steps and --batch")
    forms = [name for name in FORMS if sends is None or name in sends]
    at_least_one(len(forms), "--sends")
    settings = {"gigabytes": gigabytes, "steps": steps, "batch": batch}
    cells = Cells("largest-async", out, minutes, summary, **settings)

    def plan() -> Plan:
        for name in forms:
            trials = [f"trial; {name}; {part:.3f}" for part in TRIALS]
            for trial, part in zip(trials, TRIALS, strict=True):
                units = units_for(part * 1e9 * gigabytes, SUPPOSED_BYTES)
                yield trial, partial(measured, name, units, batch, steps)
            own, each = taken(*(cells.found[trial] for trial in trials))
            units = units_for(ROOM * 1e9 * gigabytes - own, each)
            yield f"largest; {name}", partial(measured, name, units, batch, steps)

    cells.run(plan())
    found = cells.leave()
    leave(found, "largest-async", None, json_)
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


def taken(small: Document, large: Document) -> tuple[float, float]:
    """Bytes that the processes take for themselves, and for each weight, from two networks."""
    weights = [number(cell, "parameters") for cell in (small, large)]
    peaks = [number(cell, "peak_bytes") for cell in (small, large)]
    each = (peaks[1] - peaks[0]) / (weights[1] - weights[0])
    return peaks[0] - each * weights[0], each


def summary(cells: dict[str, Document]) -> Document:
    """The largest network of each form, and what was said of them in a sentence."""
    found: list[Any] = [cell for key, cell in cells.items() if key.startswith("largest;")]
    if not found:
        return {"rows": [], "said": "not measured yet", "note": ""}
    most = max(found, key=lambda cell: int(cell["parameters"]))
    by = {cell["sends"]: cell for cell in found}
    said = (
        f"{most['parameters'] / 1e9:.2f} billion weights here, sent as {most['sends']}, within "
        f"{most['peak_bytes'] / 1e9:.1f} GB, {most['step_seconds']:.1f} s a step"
    )
    note = "Memory is that of the replica, the server and the program that starts them, shared memory once."
    if {"gradient", "factors"} <= by.keys():
        ratio = by["gradient"]["pushed_bytes_a_weight"] / by["factors"]["pushed_bytes_a_weight"]
        note += f" A weight's gradient is {ratio:.0f} times the bytes of its factors."
    bytes_a_weight = {
        name: rounded(taken(*(cells[f"trial; {name}; {part:.3f}"] for part in TRIALS))[1]) for name in by
    }
    return {"rows": found, "said": said, "note": note, "bytes_a_weight": bytes_a_weight}


if __name__ == "__main__":
    main(largest_async)
