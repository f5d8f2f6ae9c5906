"""The three heavy products of a block-local layer, on the kernels of this processor.

Knows: which tile a call takes, and how many threads. Does not know: how calls are made, autograd.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from cotswold.geometry import BlockLocal, Region
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.microkernels.driver import OUTER, PRODUCT
from cotswold.kernels.microkernels.tile import Tile
from cotswold.kernels.products import choice
from cotswold.kernels.products.calls import (
    FREE,
    Call,
    Forced,
    Map,
    adjoint_call,
    finished_call,
    outer_call,
    perform,
    processor_of,
    product_call,
    step_call,
)
from cotswold.kernels.products.choice import Choice, ShapeClass
from cotswold.kernels.products.compiled import kernel

FLOPS_A_THREAD = 2e6
"""Work below which another thread does not pay."""
MEASURED_FLOPS = 2e9
"""The most work of one measurement."""


def product(
    x: Map,
    filters: Tensor,
    layer: BlockLocal,
    out: Map,
    forced: Forced = FREE,
    only: Region | None = None,
) -> None:
    """``Wx`` into ``out``; every number of it is written, or those of the blocks in ``only``."""
    run(product_call(x, filters, layer, out, forced, only), forced)


def activated(
    x: Map,
    filters: Tensor,
    biases: Tensor,
    layer: BlockLocal,
    out: Map,
    activation: str,
    forced: Forced = FREE,
    only: Region | None = None,
) -> None:
    """The activation of ``Wx`` and biases ``(block_y, block_x, neuron)``; see `finishes` for when.

    Every number of ``out`` is written, or those of the blocks in ``only``.
    """
    call = finished_call(x, filters, biases, layer, out, activation, forced, only)
    processor, count = processor_of(forced), thread_count(call, forced)
    # tiles are those of the product alone, whose choice is shared
    tile = forced.tile or choose(replace(call, kind=PRODUCT), processor, count).tile
    execute(call, tile, processor, count)


def adjoint(
    y: Map,
    filters: Tensor,
    layer: BlockLocal,
    out: Map,
    forced: Forced = FREE,
    only: Region | None = None,
) -> None:
    """``W'y`` into ``out``, overlapping fields summed; every number is written, or those in ``only``."""
    run(adjoint_call(y, filters, layer, out, forced, only), forced)


def outer(delta: Map, x: Map, layer: BlockLocal, out: Tensor, forced: Forced = FREE) -> None:
    """``δx'`` into ``out``, shaped as filters; weights that meet only padding are left as they are."""
    run(outer_call(delta, x, layer, out, forced), forced)


def step(
    decoding: tuple[Map, Map],
    encoding: tuple[Map, Map],
    layer: BlockLocal,
    moved: tuple[Tensor, Tensor, Tensor],
    constants: Tensor,
    forced: Forced = FREE,
) -> None:
    """Move filters, momentum, norms in place by the sum of two ``δx'``, which never exists as a whole.

    ``decoding`` and ``encoding`` are each a δ and an input, of the same pitches in both. ``constants``
    are those of `Update`. The rule is that of `ops.rule.move`.
    """
    call = step_call(decoding, encoding, layer, moved, constants)
    processor, count = processor_of(forced), thread_count(call, forced)
    tile = forced.tile or _tile_of_outer(*decoding, layer, processor, count)
    execute(call, tile, processor, count)


def _tile_of_outer(delta: Map, x: Map, layer: BlockLocal, processor: Processor, count: int) -> Tile:
    """The tile of ``δx'``, measured on one row of blocks: what a step changes, it must change once."""
    row, _ = layer.block_rows(0, 1)

    def with_gradient() -> Call:
        return outer_call(delta, x, row, x.values.new_empty(row.filters_shape))

    # without one it tells its class, which is all that is needed once the tile is known
    return choose(outer_call(delta, x, row, x.values.new_empty(0)), processor, count, with_gradient).tile


def thread_count(call: Call, forced: Forced = FREE) -> int:
    """Threads that a call is worth."""
    return max(1, min(forced.threads or torch.get_num_threads(), int(call.flops / FLOPS_A_THREAD)))


def run(call: Call, forced: Forced = FREE) -> None:
    """Run a call in the best tile known, measuring first where none is."""
    if call.c.numel() == 0:
        return
    processor, count = processor_of(forced), thread_count(call, forced)
    tile = forced.tile or choose(call, processor, count).tile
    execute(call, tile, processor, count)


def choose(
    call: Call, processor: Processor, count: int, complete: Callable[[], Call] | None = None
) -> Choice:
    """The choice for a call; measuring computes its result, or a part of it, or that of the complete call."""
    flops = call.flops
    if flops < choice.WORTH_FLOPS:
        return choice.default(processor, call.narrow)
    depth = call.layer.fan_in if call.kind is not OUTER else call.images
    shape = ShapeClass.of(call.kind.name, call.dtype, call.rows, depth, call.entry, call.narrow)
    part = min(1.0, MEASURED_FLOPS / max(flops, 1.0))

    whole: list[Call] = []

    def measured(tile: Tile) -> float:
        if not whole:
            whole.append(complete() if complete else call)
        begun = time.perf_counter()
        execute(whole[0], tile, processor, count, part)
        return time.perf_counter() - begun

    return choice.choose(shape, processor, measured)


def execute(call: Call, tile: Tile, processor: Processor, count: int, part: float = 1.0) -> None:
    """Run a call, or the first part of its tasks, in a tile, on so many threads."""
    perform(kernel(call.kind.name, call.dtype, tile, processor), call, tile, processor, count, part)
