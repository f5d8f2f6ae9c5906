"""Output of `cotswold train --dry-run`.

Knows: units and names of counts, in words. Does not know: how anything is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cotswold.ui.format import bytes_in_words, kinds_of, seconds_in_words

Row = Mapping[str, object]

_NAMES = {
    "samples_are": "samples are",
    "steps_of_stacks": "steps of each stack",
    "available_bytes": "available memory",
    "times_are": "times are",
    "workers_are": "processes are",
    "evaluations_expected": "evaluations expected",
    "server_bytes": "parameters on servers",
    "samples_of_a_replica": "samples of a replica",
    "gradient_sum_bytes": "sums of gradients per step",
    "rank_memory_bytes": "memory of a rank",
    "step_bytes": "pushed and pulled per step",
    "step_flops": "FLOPs of a step",
    "run_flops": "FLOPs of the run",
    "evaluation_flops": "FLOPs of an evaluation",
    "step_seconds": "time of a step",
    "start_seconds": "time to start",
    "run_seconds": "time of the run",
    "evaluation_seconds": "time of an evaluation",
    "limit_seconds": "time limit",
    "dollars": "cost",
    "replica_memory_bytes": "memory of a replica",
    "replica_device_bytes": "memory of a replica's device",
    "server_memory_bytes": "memory of a server",
    "evaluator_memory_bytes": "memory of an evaluator",
    "worker_memory_bytes": "memory of a worker",
    "main_memory_bytes": "memory of this process",
    "queue_most_bytes": "queue of a server",
    "parts_of_parameters": "buckets of parameters",
    "parameter_servers": "parameter servers",
    "copy_memory_bytes": "memory of one copy of everything",
    "cluster_memory_bytes": "memory with the cluster",
    "cluster_server_memory_bytes": "memory with each server",
    "checkpoint_bytes": "checkpoint",
}
_BLOCKS_MOST = 40
"""Rows of the table of blocks; further blocks are only counted."""


def lines(row: Row) -> Iterator[str]:
    """Yield one line per count, then one line per block of parameters."""
    told = {_NAMES.get(name, name.replace("_", " ")): _figure(name, value) for name, value in row.items()}
    told.pop("routing", None)
    width = max(map(len, told))
    for name, value in told.items():
        yield f"{name:{width}}  {value}"
    routing = row.get("routing")
    if isinstance(routing, Sequence):
        yield from _blocks(routing)


def _blocks(routing: Sequence[Row]) -> Iterator[str]:
    yield ""
    yield "placement of each block of parameters:"
    shown = [(str(each.get("called")), str(each["block"]), str(each["server"])) for each in routing]
    sizes = [bytes_in_words(float(str(each["bytes"]))) for each in routing]
    heads = ("tensor", "block", "server")
    widths = [max(len(one) for one in column) for column in zip(heads, *shown, strict=True)]
    for cells, size in [(heads, "size"), *zip(shown[:_BLOCKS_MOST], sizes, strict=False)]:
        named = "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True))
        yield f"  {named}  {size:>8}"
    if len(shown) > _BLOCKS_MOST:
        yield f"  and {len(shown) - _BLOCKS_MOST:,} more; --json lists all"


def _figure(name: str, value: object) -> str:
    """Return a count or quantity with its unit."""
    if isinstance(value, Mapping):
        if name == "step_bytes":
            return _step(value)
        return ", ".join(f"{_figure('bytes', each)} on {key}" for key, each in value.items())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name.endswith("bytes"):
        return f"{bytes_in_words(value)}{', at most' if name.startswith('queue') else ''}"
    if name.endswith("_flops"):
        return _flops(value)
    if name.endswith("_seconds"):
        return seconds_in_words(value) if value >= 0.1 else f"{1000 * value:.2g} ms"
    if name == "dollars":
        return f"${value:.2f}" if value >= 0.01 else f"${value:.4f}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _step(value: Row) -> str:
    """Return the bytes that a replica pushes per step, by kind, and pulls."""
    push = value["push"]
    kinds = push if isinstance(push, Mapping) else {}
    told = [f"{bytes_in_words(float(str(each)))} as {kinds_of(kind)}" for kind, each in kinds.items()]
    return f"{' and '.join(told)}; {bytes_in_words(float(str(value['pull'])))}"


def _flops(count: float) -> str:
    for unit, size in (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,.0f} FLOP"
