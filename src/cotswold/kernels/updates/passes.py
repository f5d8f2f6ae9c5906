"""Updates of a shard, run on numbers in memory.

Knows: how a job is filled, a small shard that each kernel must get right first. Does not know: formulas in
vectors, rules, messages.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from struct import Struct, pack

import numpy as np
import torch
from torch import Tensor

from cotswold.kernels.compile import known_answers, library
from cotswold.kernels.compile.emit import Lanes
from cotswold.kernels.compile.known_answers import ROUNDING, Array
from cotswold.kernels.machine.prepared import PreparedKernel
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.maps.tasks import JobHead, bits, prepared
from cotswold.kernels.products.problem import NO_OVERRIDES, Overrides, processor_of
from cotswold.kernels.updates.write import CHAINS, PUSH_FIELDS, VECTORS, Kind, UpdateJob, write_update

PLACES = (UpdateJob.WEIGHTS, UpdateJob.KEPT, UpdateJob.PUSHES, UpdateJob.COUNT)
TASK = 1 << 14
"""Numbers of a task, about."""
ALONE = 1 << 15
"""Numbers of all pushes for which waking other threads does not pay."""


@dataclass(frozen=True)
class Shard:
    """What is done to a shard, and how long it is.

    ``constant`` is that of `Kind`. With ``unit_norm`` every row of ``columns`` numbers has norm 1 afterwards;
    without it rows say nothing.
    """

    kind: Kind
    size: int
    dtype: str
    constant: float = 0.0
    columns: int = 1
    unit_norm: bool = False


def run(
    shard: Shard,
    weights: Tensor,
    kept: Tensor | None,
    pushes: Sequence[tuple[float, Tensor]],
    overrides: Overrides = NO_OVERRIDES,
) -> None:
    """All pushes, in their order, in one pass: weights and what is kept, ``(size,)`` each, in place.

    They begin at any number; all are contiguous. A push is its factor and its numbers. Without pushes rows
    are scaled, where they are to be.
    """
    if shard.size == 0:
        return
    threads = overrides.threads or torch.get_num_threads()
    threads = threads if shard.size * len(pushes) >= ALONE else 1
    fields = [one for factor, values in pushes for one in (values.data_ptr(), factor)]
    table = ctypes.create_string_buffer(_table(len(pushes)).pack(*fields))
    _ready(shard, overrides, threads).run(
        weights.data_ptr(),
        0 if kept is None else kept.data_ptr(),
        ctypes.addressof(table),
        len(pushes),
    )
    del table  # the kernel has read it until here


@lru_cache(maxsize=256)
def _table(pushes: int) -> Struct:
    return Struct("=" + "qd" * pushes)


@lru_cache(maxsize=256)
def _ready(shard: Shard, overrides: Overrides, threads: int) -> PreparedKernel:
    return _prepared(kernel(shard.kind, shard.dtype, processor_of(overrides)), shard, threads)


def kernel(kind: Kind, dtype: str, processor: Processor) -> int:
    """The address of the kernel of a kind of update."""
    write = partial(write_update, kind, Lanes(dtype, processor.lanes(dtype)), processor.triple)
    return library.address(("update", kind, dtype), processor, write, partial(_is_right, kind, dtype))


def _prepared(address: int, shard: Shard, threads: int) -> PreparedKernel:
    # numbers without rows are as if in rows of a task each
    row = shard.columns if shard.unit_norm else TASK
    rows = max(1, TASK // row)
    fields = np.zeros(UpdateJob.FIELDS, np.int64)
    fields[JobHead.TASKS] = -(-shard.size // (row * rows))
    fields[UpdateJob.SIZE : UpdateJob.CONSTANT] = (shard.size, row, rows, shard.unit_norm)
    fields[UpdateJob.CONSTANT] = bits(shard.constant)
    return prepared(address, fields, PLACES, 0, (shard.dtype, threads))


def _is_right(kind: Kind, dtype: str, address: int) -> bool:
    """Whether a kernel updates small shards as NumPy does: strips, vectors, parts of one, rows, two tasks."""
    columns = VECTORS * CHAINS + 7
    shards = (
        Shard(kind, 5 * columns, dtype, 0.5, columns, unit_norm=True),
        Shard(kind, TASK + columns, dtype, 0.5),
    )
    return all(_does(address, shard) for shard in shards)


def _does(address: int, shard: Shard) -> bool:
    weights, first, second = (known_answers.numbers(shard.size, seed=seed) for seed in range(3))
    kept = np.abs(known_answers.numbers(shard.size, seed=3))
    expected, beside = _updated(shard, weights, kept, ((0.5, first), (-0.25, second)))
    found, found_beside = (known_answers.in_memory(one, shard.dtype) for one in (weights, kept))
    operands = [known_answers.in_memory(one, shard.dtype) for one in (first, second)]
    numbers = (operands[0].data_ptr(), 0.5, operands[1].data_ptr(), -0.25)
    table = ctypes.create_string_buffer(pack("=" + "qd" * (len(numbers) // PUSH_FIELDS), *numbers))
    _prepared(address, shard, 1).run(
        found.data_ptr(), found_beside.data_ptr(), ctypes.addressof(table), len(operands)
    )
    right = known_answers.agrees(found, expected, ROUNDING[shard.dtype])
    return right and known_answers.agrees(found_beside, beside, ROUNDING[shard.dtype])


def _updated(
    shard: Shard, weights: Array, kept: Array, pushes: Sequence[tuple[float, Array]]
) -> tuple[Array, Array]:
    """Weights and what is kept, by the formulas written plainly."""
    for factor, push in pushes:
        weights, kept = updated(shard.kind, shard.constant, (weights, kept), factor, push)
    if shard.unit_norm:
        rows = weights.reshape(-1, shard.columns)
        weights = (rows / np.sqrt((rows**2).sum(1, keepdims=True))).reshape(-1)
    return weights, kept


def updated(
    kind: Kind, constant: float, before: tuple[Array, Array], factor: float, push: Array
) -> tuple[Array, Array]:
    """Weights and what is kept after one push, by the formula of its kind written plainly."""
    weights, kept = before
    if kind == "add":
        return weights + factor * push, kept
    if kind == "momentum":
        kept = constant * kept - factor * push
        return weights + kept, kept
    kept = kept + push**2
    return weights - factor * push / (np.sqrt(kept) + constant), kept
