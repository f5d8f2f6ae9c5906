"""The three main products of a block-local layer by CPU kernels.

Knows: the tile and threads of a product, the cache of prepared products. Does not know: plans, autograd. Maps
are ``(image, channel, y, x)`` with the images last in memory, filters contiguous.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from cotswold.geometry import BlockLocal, Region
from cotswold.kernels.machine.execution import LruCache, threads_for_flops
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.microkernels.kinds import (
    ADJOINT,
    OUTER,
    PRODUCT,
    PRODUCT_SMALL_BATCH,
    PRODUCT_WITH_EPILOGUE,
    STEP,
    ProductKind,
    Tile,
)
from cotswold.kernels.operands import name_of, pointer_of, required_map_strides
from cotswold.kernels.products import autotune
from cotswold.kernels.products.autotune import Choice, TuningKey
from cotswold.kernels.products.compiled import kernel
from cotswold.kernels.products.prepare import Execution, PreparedProduct, prepare_product, run_step
from cotswold.kernels.products.problem import (
    NO_OVERRIDES,
    Overrides,
    Problem,
    neurons_in_lanes,
    processor_of,
)

MEASURED_FLOPS = 2e9
"""Maximum work of one measurement."""
PREPARED_MOST, PREPARED_BYTES = 256, 128 << 20
"""Maximum number of prepared products, and of their bytes: several stacks and a few batch sizes."""

READY: LruCache[tuple[object, ...], PreparedProduct] = LruCache(PREPARED_MOST, PREPARED_BYTES)


def product(
    x: Tensor,
    filters: Tensor,
    layer: BlockLocal,
    out: Tensor,
    overrides: Overrides = NO_OVERRIDES,
    only: Region | None = None,
    tied: bool = False,
) -> None:
    """Write ``Wx`` to ``out``, completely, or only for the blocks in ``only``.

    ``tied``: all blocks share filters ``(1, 1, field_y, field_x * channel, neuron)``: a convolution.
    """
    if out.numel() > 0:
        _prepare_tuned(PRODUCT, layer, x, out, filters, overrides, only, tied=tied).run(
            pointer_of(x), pointer_of(out), pointer_of(filters)
        )


def product_with_activation(
    x: Tensor,
    filters: Tensor,
    biases: Tensor,
    layer: BlockLocal,
    out: Tensor,
    activation: str,
    overrides: Overrides = NO_OVERRIDES,
    only: Region | None = None,
    tied: bool = False,
) -> None:
    """Write the activation of ``Wx`` and biases ``(block_y, block_x, neuron)`` to ``out``.

    ``out`` is written completely, or only for the blocks in ``only``. ``tied``: all blocks share filters and
    biases. See `problem.supports_epilogue` for the conditions.
    """
    _prepare_tuned(PRODUCT_WITH_EPILOGUE[activation], layer, x, out, filters, overrides, only, tied=tied).run(
        pointer_of(x), pointer_of(out), pointer_of(filters), pointer_of(biases)
    )


def adjoint(
    y: Tensor,
    filters: Tensor,
    layer: BlockLocal,
    out: Tensor,
    overrides: Overrides = NO_OVERRIDES,
    only: Region | None = None,
    tied: bool = False,
) -> None:
    """Write ``W'y`` to ``out``, with overlaps summed, completely or only for positions in ``only``.

    ``tied``: all blocks share filters ``(1, 1, field_y, field_x * channel, neuron)``.
    """
    if out.numel() > 0:
        _prepare_tuned(ADJOINT, layer, out, y, filters, overrides, only, tied=tied).run(
            pointer_of(out), pointer_of(y), pointer_of(filters)
        )


def outer(
    delta: Tensor,
    x: Tensor,
    layer: BlockLocal,
    out: Tensor,
    overrides: Overrides = NO_OVERRIDES,
    accumulates: bool = False,
) -> None:
    """Write ``δx'`` to ``out``, shaped as filters; weights that read only padding stay unchanged.

    ``accumulates``: add to ``out`` instead; float32 and float64 only.
    """
    assert not accumulates or out.dtype in (torch.float32, torch.float64), "half precision cannot be added to"
    ready = _prepare_tuned(OUTER, layer, x, delta, out, overrides, adding=accumulates)
    ready.run(pointer_of(x), pointer_of(delta), pointer_of(out))


def step(
    decoding: tuple[Tensor, Tensor],
    encoding: tuple[Tensor, Tensor],
    layer: BlockLocal,
    moved: tuple[Tensor, Tensor, Tensor],
    constants: Tensor,
    overrides: Overrides = NO_OVERRIDES,
) -> None:
    """Update filters, momentum and norms in place by the sum of two ``δx'``, which never exists as a whole.

    ``decoding`` and ``encoding`` are each a δ and an input, with the same strides in both. ``constants`` are
    float64: the fraction of the last step that is kept, the rate over α times the fan-in, the longest step.
    The rule is that of `ops.sgd_rule.filter_step`.
    """
    delta, x = decoding
    assert all(map(_same_strides, decoding, encoding)), "both pairs of maps of a step must have equal strides"
    run_step(_prepare_tuned(STEP, layer, x, delta, moved[0], overrides), decoding, encoding, moved, constants)


def _same_strides(one: Tensor, other: Tensor) -> bool:
    return one.stride() == other.stride() or required_map_strides(one) == required_map_strides(other)


def tuned_choice(
    kind: ProductKind, layer: BlockLocal, x: Tensor, y: Tensor, filters: Tensor
) -> tuple[Problem, Choice]:
    """Return the problem of a product of these operands, and the choice of its tile."""
    problem = _problem(kind, layer, x, y, NO_OVERRIDES, None)
    return problem, choose(problem, processor_of(), thread_count(problem), (x, y, filters))


def thread_count(problem: Problem, overrides: Overrides = NO_OVERRIDES) -> int:
    """Return the number of threads worth using for a product."""
    return threads_for_flops(problem.flops, overrides.threads or torch.get_num_threads())


def _prepare_tuned(
    kind: ProductKind,
    layer: BlockLocal,
    x: Tensor,
    y: Tensor,
    filters: Tensor,
    overrides: Overrides = NO_OVERRIDES,
    only: Region | None = None,
    adding: bool = False,
    tied: bool = False,
) -> PreparedProduct:
    """Return a prepared product with the best known tile, from the cache or new; measure if necessary."""
    threads = torch.get_num_threads()
    alike = (x.shape[0], x.stride(), y.stride(), x.dtype, threads)
    key = (kind.name, layer, *alike, overrides, only, adding, tied)
    found = READY.find(key)
    if found is not None:
        return found
    problem = replace(_problem(kind, layer, x, y, overrides, only), accumulates=adding, tied=tied)
    made, is_provisional = _prepare(problem, (x, y, filters), overrides)
    return made if is_provisional else READY.put(key, lambda: made)


def _problem(
    kind: ProductKind, layer: BlockLocal, x: Tensor, y: Tensor, overrides: Overrides, only: Region | None
) -> Problem:
    images, dtype = x.shape[0], name_of(x.dtype)
    if kind is PRODUCT and neurons_in_lanes(images, layer, dtype, overrides):
        kind = PRODUCT_SMALL_BATCH
    return Problem(kind, layer, images, dtype, required_map_strides(x), required_map_strides(y), only)


def _prepare(
    problem: Problem, operands: tuple[Tensor, Tensor, Tensor], overrides: Overrides
) -> tuple[PreparedProduct, bool]:
    """Return a prepared product, and True if its tile is provisional."""
    processor, count = processor_of(overrides), thread_count(problem, overrides)
    if overrides.tile is not None:
        return _prepare_with_tile(problem, Execution(overrides.tile, processor, count)), False
    choice = choose(problem, processor, count, operands)
    return _prepare_with_tile(problem, Execution(choice.tile, processor, count)), choice.is_provisional


def _prepare_with_tile(problem: Problem, how: Execution) -> PreparedProduct:
    return prepare_product(problem, how, kernel(problem.kind.name, problem.dtype, how.tile, how.processor))


def choose(
    problem: Problem, processor: Processor, count: int, operands: tuple[Tensor, Tensor, Tensor]
) -> Choice:
    """Return the choice for a problem; measuring computes its result, or part of it, on these operands.

    The operands are an input map, an output map and filters, one of which is overwritten. A step's filters
    and a C that is added to stay unchanged.
    """
    problem, kept = problem.tuning_problem, problem.kind is STEP or problem.accumulates
    extents = problem.tuning_shape(processor)
    shape = TuningKey.from_shape(
        problem.kind.name, problem.dtype, extents.rows, extents.depth, extents.entry, extents.narrow, count
    )
    if problem.flops < autotune.WORTH_FLOPS:
        return autotune.default(processor, shape)
    part = min(1.0, MEASURED_FLOPS / max(problem.flops, 1.0))
    ready: dict[Tile, PreparedProduct] = {}
    used = list(operands)

    def measured(tile: Tile) -> float:
        if kept and used[2] is operands[2]:
            used[2] = operands[0].new_empty(problem.layer.filters_shape)
        if tile not in ready:
            ready[tile] = _prepare_with_tile(problem, Execution(tile, processor, count, part))
        x, y, filters = (pointer_of(one) for one in used)
        begun = time.perf_counter()
        ready[tile].run(x, y, filters)
        return time.perf_counter() - begun

    return autotune.choose(shape, processor, measured)
