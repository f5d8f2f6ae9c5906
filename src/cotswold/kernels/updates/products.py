"""Updates of a shard by factors, in memory.

Knows: the fields of a job, the amount packed at a time, the small shard of the self-tests. Does not know:
formulas in vectors, rules, messages.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from struct import Struct

import numpy as np
import torch
from torch import Tensor

from cotswold.kernels.compile import library, self_test_reference
from cotswold.kernels.compile.emit import BYTES, Lanes
from cotswold.kernels.compile.jobs import bits, prepare_kernel
from cotswold.kernels.compile.self_test_reference import ROUNDING
from cotswold.kernels.machine.execution import PreparedKernel, threads_for_flops
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.operands import pointer_of
from cotswold.kernels.products.problem import NO_OVERRIDES, Overrides, processor_of
from cotswold.kernels.updates import passes
from cotswold.kernels.updates.factors import HEIGHTS, JOB, K_BLOCK, vectors_of, write_factors
from cotswold.kernels.updates.passes import ShardKind, apply_update
from cotswold.kernels.updates.write import Kind

OPERAND_SLOTS = JOB.places("weights", "optimizer_state", "pushes", "count")
PACKED_BYTES = 1 << 19
"""Bytes of activations packed at a time: half of a second-level cache."""
BAND_ROWS = 170 * HEIGHTS[0]
"""Maximum rows of a task."""
EXAMPLES_TOGETHER = 512
"""Samples of pushes in one pass; with more, another pass over the weights costs little."""

Factors = tuple[float, Tensor, Tensor]
"""A factor, errors ``(sample, row)``, activations ``(sample, column)``."""


@dataclass(frozen=True)
class BlockKind:
    """Update of a block of weights ``(row, column)``; ``constant`` is that of `Kind`.

    With ``unit_norm`` every row has norm 1 afterwards.
    """

    kind: Kind
    rows: int
    columns: int
    dtype: str
    constant: float = 0.0
    unit_norm: bool = False


def run_products(
    block: BlockKind,
    weights: Tensor,
    kept: Tensor | None,
    pushes: Sequence[Factors],
    overrides: Overrides = NO_OVERRIDES,
) -> None:
    """Apply pushes of factors in order, in few passes, in place on weights and optimizer state, flat.

    All vectors are contiguous, with any alignment. Every push has at least one sample.
    """
    if not pushes or block.rows == 0 or block.columns == 0:
        return
    if block.unit_norm:  # a wrong kernel must be found before anything is changed
        passes.kernel(block.kind, block.dtype, processor_of(overrides))
    some: list[Factors] = []
    together = 0
    for push in pushes:
        examples = push[1].shape[0]
        if some and together + examples > EXAMPLES_TOGETHER:
            _run(block, weights, kept, some, overrides)
            some, together = [], 0
        some.append(push)
        together += examples
    _run(block, weights, kept, some, overrides)
    if block.unit_norm:
        passes.run(_rows(block), weights, kept, [], overrides)


@lru_cache(maxsize=256)
def _rows(block: BlockKind) -> ShardKind:
    size = block.rows * block.columns
    return ShardKind(block.kind, size, block.dtype, block.constant, block.columns, unit_norm=True)


def _run(
    block: BlockKind, weights: Tensor, kept: Tensor | None, pushes: Sequence[Factors], overrides: Overrides
) -> None:
    examples = sum(errors.shape[0] for _, errors, _ in pushes)
    threads = overrides.threads or torch.get_num_threads()
    threads = threads_for_flops(2 * examples * block.rows * block.columns, threads)
    fields = [
        one
        for factor, errors, activations in pushes
        for one in (pointer_of(errors), pointer_of(activations), errors.shape[0], factor)
    ]
    table = ctypes.create_string_buffer(_table(len(pushes)).pack(*fields))
    _prepare(block, examples, overrides, threads).run(
        pointer_of(weights),
        0 if kept is None else pointer_of(kept),
        ctypes.addressof(table),
        len(pushes),
    )
    del table  # the kernel has read it until here


@lru_cache(maxsize=256)
def _table(pushes: int) -> Struct:
    return Struct("=" + "qqqd" * pushes)


@lru_cache(maxsize=256)
def _prepare(block: BlockKind, examples: int, overrides: Overrides, threads: int) -> PreparedKernel:
    processor = processor_of(overrides)
    return _prepared(kernel(block.kind, block.dtype, processor), block, examples, processor, threads)


def kernel(kind: Kind, dtype: str, processor: Processor) -> int:
    """Return the address of the kernel of a kind of update by factors."""
    write = partial(write_factors, kind, Lanes(dtype, processor.lanes(dtype)), processor.triple)
    is_right = partial(_passes_self_test, kind, dtype, processor)
    return library.address(("factors", kind, dtype), processor, write, is_right)


def _prepared(
    address: int, block: BlockKind, examples: int, processor: Processor, threads: int
) -> PreparedKernel:
    lanes = Lanes(block.dtype, processor.lanes(block.dtype))
    strip = vectors_of(lanes) * lanes.count
    most = max(1, PACKED_BYTES // (examples * BYTES[block.dtype] * strip))
    columns = min(most, -(-block.columns // strip)) * strip
    share = -(-block.rows // threads)
    band = min(BAND_ROWS, -(-share // HEIGHTS[0]) * HEIGHTS[0])
    fields = JOB.fill(
        -(-block.rows // band),
        {"rows": block.rows, "columns": block.columns, "band": band, "block": columns}
        | {"errors": examples * columns, "constant": bits(block.constant)},
    )
    scratch = examples * (columns + band)
    return prepare_kernel(address, fields, OPERAND_SLOTS, scratch, (block.dtype, threads))


def _passes_self_test(kind: Kind, dtype: str, processor: Processor, address: int) -> bool:
    """True if a kernel updates a small shard as NumPy does: tiles of all heights, remainders, k-blocks."""
    block = BlockKind(kind, 2 * HEIGHTS[0] + 3, 141, dtype, 0.5)
    shape, counts, factors = (block.rows, block.columns), (3, K_BLOCK + 1), (0.5, -0.25)
    weights = self_test_reference.sample_values(*shape)
    kept = np.abs(self_test_reference.sample_values(*shape, seed=3))
    pairs = [
        tuple(
            self_test_reference.sample_values(count, size, seed=count + place)
            for place, size in enumerate(shape)
        )
        for count in counts
    ]
    found, beside = (self_test_reference.as_tensor(one, dtype) for one in (weights, kept))
    operands = [[self_test_reference.as_tensor(one, dtype) for one in pair] for pair in pairs]
    fields = [
        one
        for factor, (errors, activations) in zip(factors, operands, strict=True)
        for one in (pointer_of(errors), pointer_of(activations), errors.shape[0], factor)
    ]
    table = ctypes.create_string_buffer(_table(len(pairs)).pack(*fields))
    _prepared(address, block, sum(counts), processor, 1).run(
        pointer_of(found), pointer_of(beside), ctypes.addressof(table), len(pairs)
    )
    for factor, (errors, activations) in zip(factors, pairs, strict=True):
        gradient = errors.T @ activations
        weights, kept = apply_update(kind, 0.5, (weights, kept), factor, gradient)
    right = self_test_reference.is_close(found, weights, ROUNDING[dtype])
    return right and self_test_reference.is_close(beside, kept, ROUNDING[dtype])
