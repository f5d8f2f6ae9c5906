"""Updates of shards in memory: many shards in one call.

Knows: the fields of jobs and tables, the small shards of the self-tests. Does not know: formulas in vectors,
rules, messages.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
import torch
from torch import Tensor

from cotswold.kernels.compile import library, self_test_reference
from cotswold.kernels.compile.emit import Lanes
from cotswold.kernels.compile.jobs import JobHead, bits, prepare_kernel
from cotswold.kernels.compile.self_test_reference import ROUNDING, Array
from cotswold.kernels.machine.execution import PreparedKernel, threads_for_cheap_pass
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.operands import pointer_of
from cotswold.kernels.products.problem import NO_OVERRIDES, Overrides, processor_of
from cotswold.kernels.updates.write import CHAINS, JOB, SHARD, VECTORS, Kind, write_update

OPERAND_SLOTS = JobHead.TASKS, *JOB.places("shards", "count", "steps", "pushes", "factors")
TASK = 1 << 14
"""Approximate elements of a task."""


@dataclass(frozen=True)
class ShardKind:
    """Kind of update and length of a shard.

    ``constant`` is that of `Kind`. With ``unit_norm`` every row of ``columns`` elements has norm 1
    afterwards; without it rows are ignored.
    """

    kind: Kind
    size: int
    dtype: str
    constant: float = 0.0
    columns: int = 1
    unit_norm: bool = False

    @cached_property
    def geometry(self) -> tuple[int, int, int, int]:
        """Size, elements of a row and of a task, unit norm: the fields of the table."""
        # without rows, treat each task as one row
        row = self.columns if self.unit_norm else TASK
        return self.size, row, row * max(1, TASK // row), int(self.unit_norm)


class Queues:
    """Shards of one kind, dtype and constant with their pushes, by addresses that the caller keeps alive."""

    def __init__(self) -> None:
        self._shards, self._pushes, self._factors = array("q"), array("q"), array("d")
        self._tasks = self._numbers = 0

    def add(
        self, shard: ShardKind, weights: int, kept: int, pushes: Sequence[int], factors: Sequence[float]
    ) -> None:
        """Add a shard, its optimizer state (0 for none), its pushes in order, and the factor of each."""
        if shard.size == 0:
            return
        count = len(pushes)
        geometry = shard.geometry
        self._shards.extend((self._tasks, weights, kept, len(self._pushes), count, *geometry))
        self._pushes.extend(pushes)
        self._factors.extend(factors)
        self._tasks += -(-shard.size // geometry[2])
        self._numbers += shard.size * max(1, count)

    def run(self, shard: ShardKind, overrides: Overrides = NO_OVERRIDES) -> None:
        """Apply all pushes of all shards, which are like ``shard``, in one pass."""
        if not self._tasks:
            return
        threads = threads_for_cheap_pass(self._numbers, overrides.threads or torch.get_num_threads())
        self.run_by(_prepare(shard.kind, shard.dtype, shard.constant, overrides, threads))

    def run_by(self, ready: PreparedKernel) -> None:
        """Run all shards on a prepared kernel."""
        count = len(self._shards) // SHARD.size
        shards, pushes, factors = (
            one.buffer_info()[0] for one in (self._shards, self._pushes, self._factors)
        )
        ready.run(self._tasks, shards, count, (count - 1).bit_length(), pushes, factors)


def run(
    shard: ShardKind,
    weights: Tensor,
    kept: Tensor | None,
    pushes: Sequence[tuple[float, Tensor]],
    overrides: Overrides = NO_OVERRIDES,
) -> None:
    """Apply all pushes in order, in one pass, in place on weights and optimizer state, ``(size,)`` each.

    All vectors are contiguous, with any alignment. A push is a factor and a vector. Without pushes, rows are
    still scaled if ``unit_norm``.
    """
    one = Queues()
    addresses, factors = [pointer_of(values) for _, values in pushes], [factor for factor, _ in pushes]
    one.add(shard, pointer_of(weights), 0 if kept is None else pointer_of(kept), addresses, factors)
    one.run(shard, overrides)


@lru_cache(maxsize=256)
def _prepare(kind: Kind, dtype: str, constant: float, overrides: Overrides, threads: int) -> PreparedKernel:
    return _prepared(kernel(kind, dtype, processor_of(overrides)), dtype, constant, threads)


def kernel(kind: Kind, dtype: str, processor: Processor) -> int:
    """Return the address of the kernel of a kind of update."""
    write = partial(write_update, kind, Lanes(dtype, processor.lanes(dtype)), processor.triple)
    return library.address(("update", kind, dtype), processor, write, partial(_passes_self_test, kind, dtype))


def _prepared(address: int, dtype: str, constant: float, threads: int) -> PreparedKernel:
    fields = JOB.fill(0, {"constant": bits(constant)})
    return prepare_kernel(address, fields, OPERAND_SLOTS, 0, (dtype, threads))


def _passes_self_test(kind: Kind, dtype: str, address: int) -> bool:
    """True if a kernel updates small shards as NumPy does: strips, vectors, remainders, rows, two tasks."""
    columns = VECTORS * CHAINS + 7
    trials = [
        _SelfTestCase(ShardKind(kind, 5 * columns, dtype, 0.5, columns, unit_norm=True), 2),
        _SelfTestCase(ShardKind(kind, TASK + columns, dtype, 0.5), 2),
        _SelfTestCase(ShardKind(kind, 3, dtype, 0.5), 1),
    ]
    queues = Queues()
    for one in trials:
        one.put(queues)
    queues.run_by(_prepared(address, dtype, 0.5, 1))
    return all(one.passes() for one in trials)


class _SelfTestCase:
    """A shard, its pushes, and the expected result of a self-test."""

    def __init__(self, shard: ShardKind, pushes: int) -> None:
        self.shard, self.factors = shard, (0.5, -0.25)[:pushes]
        weights, *some = (
            self_test_reference.sample_values(shard.size, seed=seed) for seed in range(1 + pushes)
        )
        kept = np.abs(self_test_reference.sample_values(shard.size, seed=3))
        self.expected = _apply_updates(shard, weights, kept, list(zip(self.factors, some, strict=True)))
        self.weights, self.optimizer_state, *self.pushes = (
            self_test_reference.as_tensor(one, shard.dtype) for one in (weights, kept, *some)
        )

    def put(self, queues: Queues) -> None:
        """Add the shard to the queues."""
        addresses = [pointer_of(one) for one in self.pushes]
        queues.add(
            self.shard, pointer_of(self.weights), pointer_of(self.optimizer_state), addresses, self.factors
        )

    def passes(self) -> bool:
        """Return True if the result is as expected."""
        found = zip((self.weights, self.optimizer_state), self.expected, strict=True)
        return all(
            self_test_reference.is_close(one, other, ROUNDING[self.shard.dtype]) for one, other in found
        )


def _apply_updates(
    shard: ShardKind, weights: Array, kept: Array, pushes: Sequence[tuple[float, Array]]
) -> tuple[Array, Array]:
    """Return weights and optimizer state after all pushes, by plain formulas."""
    for factor, push in pushes:
        weights, kept = apply_update(shard.kind, shard.constant, (weights, kept), factor, push)
    if shard.unit_norm:
        rows = weights.reshape(-1, shard.columns)
        weights = (rows / np.sqrt((rows**2).sum(1, keepdims=True))).reshape(-1)
    return weights, kept


def apply_update(
    kind: Kind, constant: float, before: tuple[Array, Array], factor: float, push: Array
) -> tuple[Array, Array]:
    """Return weights and optimizer state after one push, by the plain formula of its kind."""
    weights, kept = before
    if kind == "add":
        return weights + factor * push, kept
    if kind == "momentum":
        kept = constant * kept - factor * push
        return weights + kept, kept
    kept = kept + push**2
    return weights - factor * push / (np.sqrt(kept) + constant), kept
