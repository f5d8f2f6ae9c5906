"""The kernels of products: who writes them, and a small product that each must get right before it is used.

Knows: which generator writes a kind, which operands a trial has. Does not know: choices, threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from llvmlite import ir
from torch import Tensor

from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels.compile import known_answers, library
from cotswold.kernels.compile.emit import Lanes
from cotswold.kernels.compile.known_answers import ROUNDING, Array
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.microkernels.driver import KINDS, write_kernel
from cotswold.kernels.microkernels.pair_driver import write_pair_kernel
from cotswold.kernels.microkernels.tile import Tile
from cotswold.kernels.products.calls import (
    Call,
    Forced,
    Map,
    adjoint_call,
    finished_call,
    outer_call,
    perform,
    product_call,
    step_call,
    summed,
)
from cotswold.kernels.products.plan import Grain, Pitches, Plan

STEP = (0.9, 0.01, 0.1)
"""Constants of a step that is tried."""


def kernel(kind: str, dtype: str, tile: Tile, processor: Processor) -> int:
    """The address of a kernel of products."""
    trial = partial(_is_right, kind, dtype, tile, processor)
    return library.address((kind, dtype, tile), processor, _writer(kind, dtype, tile, processor), trial)


def edition(kind: str, dtype: str, tile: Tile, processor: Processor) -> str:
    """What names a kernel of products as it would be written now."""
    return library.edition(_writer(kind, dtype, tile, processor), processor)


def _writer(kind: str, dtype: str, tile: Tile, processor: Processor) -> partial[ir.Module]:
    if dtype == "bfloat16":
        return partial(write_pair_kernel, KINDS[kind], tile, processor.triple)
    lanes = Lanes(dtype, processor.lanes(dtype))
    return partial(write_kernel, KINDS[kind], lanes, tile, processor.triple)


def _is_right(kind: str, dtype: str, tile: Tile, processor: Processor, address: int) -> bool:
    """Whether a kernel computes a small product whose result is known.

    Rows and lanes are a whole tile and parts of one, so that tiles of all heights are used; every entry is a
    section, so that sums are added to those before. No two pitches are the same.
    """
    count = (tile.vectors + 1) * processor.lanes(summed(dtype))
    layer = BlockLocal(MapShape(2, 5, 4), Window(3, 2), Window(3, 1), rows=1, columns=1, depth=count + 7)
    trial = _Trial(layer, count + 5, dtype, Forced(processor, few=kind == "product_few"))
    call, is_right = trial.of(kind)
    planned = call.planned

    def in_sections(grain: Grain) -> Plan:
        return replace(planned(grain), section=1)

    perform(address, replace(call, planned=in_sections), tile, processor, 1)
    return is_right()


class _Trial:
    """Operands of one layer, and calls with what their results should be."""

    def __init__(self, layer: BlockLocal, images: int, dtype: str, forced: Forced) -> None:
        self.layer, self.dtype, self.forced, self.error = layer, dtype, forced, ROUNDING[dtype]
        shape, out = layer.input, layer.output
        self.x = known_answers.numbers(shape.height, shape.width, shape.channels, images)
        self.y = known_answers.numbers(out.height, out.width, out.channels, images, seed=1)
        self.filters = known_answers.numbers(*layer.filters_shape, seed=2)
        self.right = known_answers.Products(layer)

    def of(self, kind: str) -> tuple[Call, Callable[[], bool]]:
        """A call of a kind, and whether its result is right afterwards."""
        layer, filters = self.layer, known_answers.in_memory(self.filters, self.dtype)
        x, y = self._map(self.x), self._map(self.y)
        if kind == "adjoint":
            out = self._unwritten(self.x)
            return adjoint_call(y, filters, layer, out, self.forced), self._checked(
                out, self.right.adjoint(self.y, self.filters)
            )
        if kind == "outer":
            gradient = torch.full_like(filters, torch.nan)
            call = outer_call(y, x, layer, gradient, self.forced)
            return call, lambda: known_answers.agrees(gradient, self.right.outer(self.y, self.x))
        if kind == "step":
            return self._step(x, y, filters)
        out, sums = self._unwritten(self.y), self.right.product(self.x, self.filters)
        if kind in ("product", "product_few"):
            return product_call(x, filters, layer, out, self.forced), self._checked(out, sums)
        biases, curve = known_answers.numbers(*layer.norms_shape, seed=3), kind.removeprefix("product_")
        call = finished_call(
            x, filters, known_answers.in_memory(biases, self.dtype), layer, out, curve, self.forced
        )
        expected = known_answers.CURVES[curve](sums + biases[..., None])
        return call, self._checked(out, expected, self.error)

    def _step(self, x: Map, y: Map, filters: Tensor) -> tuple[Call, Callable[[], bool]]:
        """Both pairs of maps are the same, so that the gradient is twice one product."""
        past = known_answers.numbers(*self.layer.filters_shape, seed=4)
        gradient = 2 * self.right.outer(self.y, self.x)
        expected = known_answers.moved(self.filters, past, gradient, STEP)
        momentum, norms = known_answers.in_memory(past, self.dtype), filters.square().sum((2, 3)).sqrt()
        constants = torch.tensor(STEP, dtype=torch.float64, device="cpu")
        call = step_call((y, x), (y, x), self.layer, (filters, momentum, norms), constants)
        found = filters, momentum, norms
        return call, lambda: all(map(partial(known_answers.agrees, error=self.error), found, expected))

    def _map(self, values: Array) -> Map:
        """A map as a part of a larger batch, how much larger is another number for x and for y."""
        beside = 3 if values.shape == self.x.shape else 9
        whole = known_answers.as_map(
            np.pad(values, [(0, 0)] * 3 + [(0, beside)], constant_values=np.nan), self.dtype
        )
        total, channels, _, width = whole.shape
        return Map(whole[: values.shape[3]], Pitches(total, channels * total, width * channels * total))

    def _unwritten(self, like: Array) -> Map:
        return self._map(np.full_like(like, np.nan))

    def _checked(self, out: Map, expected: Array, error: float = 0.0) -> Callable[[], bool]:
        return lambda: known_answers.map_agrees(out.values, expected, error)
