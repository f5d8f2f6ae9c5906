"""Every operation beside its ceiling and its rivals.

Knows: who runs against whom in a round, what a row of the result says. Does not know: the command line,
plots.

For each number of threads a process of its own is started, so that PyTorch, NumPy and JAX all keep to it.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from cotswold.bench.measure import (
    Document,
    Spread,
    document,
    interleaved,
    rates,
    ratios,
    rounded_all,
    threads_in_children,
)
from cotswold.bench.operations import FLOAT_BYTES, Operation, passes, products, step
from cotswold.bench.rivals import with_jax
from cotswold.bench.shapes import Shape

Tally = Callable[[int, int], None]
Samples = dict[tuple[str, str], list[float]]
_DENSE, _ADDED = "dense", "y += x"


@dataclass(frozen=True)
class Effort:
    """How thoroughly: rounds, and the size of the dense product that is the ceiling."""

    rounds: int = 7
    dense_size: int = 2048


QUICK = Effort(rounds=3, dense_size=384)


def kernels(
    shapes: Sequence[Shape], threads: Sequence[int], effort: Effort, command: str, tally: Tally | None = None
) -> Document:
    """All shapes on each number of threads, one after the other."""
    rows: list[Document] = []
    for count in threads:
        for row in _on_threads(shapes, count, effort):
            rows.append(row)
            if tally is not None:
                tally(len(rows), len(shapes) * len(threads))
    return document(
        "kernels",
        command,
        rounds=effort.rounds,
        dense_size=effort.dense_size,
        jax=with_jax(),
        shapes=rows,
    )


def _on_threads(shapes: Sequence[Shape], threads: int, effort: Effort) -> Iterator[Document]:
    spawn = multiprocessing.get_context("spawn")
    with (
        threads_in_children(threads),
        ProcessPoolExecutor(1, spawn, initializer=_begin, initargs=(threads,)) as process,
    ):
        for shape in shapes:
            yield {"threads": threads, **process.submit(measured, shape, effort).result()}


def _begin(threads: int) -> None:
    """JAX takes a thread for every core that it may use, and no other advice."""
    if with_jax() and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    import torch

    torch.set_num_threads(threads)


def measured(shape: Shape, effort: Effort) -> Document:
    """One shape in this process: products and step beside the dense product, the rest beside ``y += x``."""
    operations = products(shape)
    bounded: list[Operation] = []
    if shape.stack is not None:
        operations.append(step(shape, shape.stack))
        bounded = passes(shape, shape.stack)
    dense, rows = _beside_dense(operations, effort)
    return {
        "shape": shape.name,
        "group": shape.group,
        "images": shape.images,
        "input": str(shape.layer.input),
        "output": str(shape.layer.output),
        "grid": list(shape.layer.grid),
        "weights": shape.layer.parameters,
        "dense": dense,
        "operations": [*rows, *_beside_added(bounded, effort)],
    }


def _beside_dense(operations: list[Operation], effort: Effort) -> tuple[Document, list[Document]]:
    from cotswold.bench.ceilings import dense_flops, dense_products

    actions = {(_DENSE, name): action for name, action in dense_products(effort.dense_size).items()}
    actions |= _actions(operations)
    samples = interleaved(actions, effort.rounds)
    found = {name: seconds for (what, name), seconds in samples.items() if what == _DENSE}
    fastest = min(found, key=lambda name: Spread.of(found[name]).median)
    flops = dense_flops(effort.dense_size)
    dense: Document = {
        "fastest": fastest,
        "gflops": {name: _giga(rates(flops, seconds)) for name, seconds in found.items()},
        "seconds": {name: rounded_all(seconds) for name, seconds in found.items()},
    }
    return dense, [_row(one, samples, "GFLOP/s", flops, found[fastest]) for one in operations]


def _beside_added(operations: list[Operation], effort: Effort) -> list[Document]:
    from cotswold.bench.ceilings import added

    if not operations:
        return []
    actions = {(_ADDED, one.name): added(_elements(one)) for one in operations}
    actions |= _actions(operations)
    samples = interleaved(actions, effort.rounds)
    rows = []
    for one in operations:
        ceiling = samples[_ADDED, one.name]
        row = _row(one, samples, "GB/s", 3 * _elements(one) * FLOAT_BYTES, ceiling)
        rows.append({**row, "ceiling_seconds": rounded_all(ceiling)})
    return rows


def _elements(operation: Operation) -> int:
    """``y += x`` on so many moves as many bytes: each is read twice and written once."""
    return max(1, operation.work // (3 * FLOAT_BYTES))


def _actions(operations: list[Operation]) -> dict[tuple[str, str], Callable[[], object]]:
    return {(one.name, by): action for one in operations for by, action in one.by.items()}


def _row(
    operation: Operation, samples: Samples, unit: str, ceiling_work: int, ceiling: list[float]
) -> Document:
    """Rates, and shares of the ceiling round by round."""
    seconds = {by: samples[operation.name, by] for by in operation.by}
    share = {
        by: ratios([operation.work / one for one in taken], [ceiling_work / one for one in ceiling]).as_dict()
        for by, taken in seconds.items()
    }
    return {
        "operation": operation.name,
        "unit": unit,
        "work": operation.work,
        "rate": {by: _giga(rates(operation.work, taken)) for by, taken in seconds.items()},
        "of_ceiling": share,
        "seconds": {by: rounded_all(taken) for by, taken in seconds.items()},
    }


def _giga(spread: Spread) -> dict[str, float]:
    return {name: value / 1e9 for name, value in spread.as_dict().items()}
