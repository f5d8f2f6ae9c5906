"""The product kernels: their generators, and the small product of their self-tests.

Knows: the generator of each kind, the operands of a self-test. Does not know: choices, threads.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from llvmlite import ir
from torch import Tensor

from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels.compile import library, self_test_reference
from cotswold.kernels.compile.emit import Lanes
from cotswold.kernels.compile.self_test_reference import ROUNDING, Array
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.microkernels.driver import write_kernel
from cotswold.kernels.microkernels.half_driver import write_half_kernel
from cotswold.kernels.microkernels.half_units import Units
from cotswold.kernels.microkernels.kinds import AMX_TILE, KINDS, ProductKind, Tile
from cotswold.kernels.operands import HALVES, pointer_of, required_map_strides
from cotswold.kernels.products.prepare import Execution, PreparedProduct, prepare_product, run_step
from cotswold.kernels.products.problem import Problem, lanes_of

CONSTANTS = (0.9, 0.01, 0.1)
"""Constants of a step in a self-test."""


def kernel(kind: str, dtype: str, tile: Tile, processor: Processor) -> int:
    """Return the address of a product kernel."""
    trial = partial(_passes_self_test, kind, dtype, tile, processor)
    return library.address((kind, dtype, tile), processor, _writer(kind, dtype, tile, processor), trial)


def cache_key(kind: str, dtype: str, tile: Tile, processor: Processor) -> str:
    """Return the cache key of a product kernel as it would be generated now."""
    return library.cache_key(_writer(kind, dtype, tile, processor), processor)


def _writer(kind: str, dtype: str, tile: Tile, processor: Processor) -> partial[ir.Module]:
    if dtype in HALVES:
        units = Units.for_dtype(dtype, processor, tile)
        return partial(write_half_kernel, KINDS[kind], units, tile, processor.triple)
    lanes = Lanes(dtype, processor.lanes(dtype))
    return partial(write_kernel, KINDS[kind], lanes, tile, processor.triple)


def _passes_self_test(kind: str, dtype: str, tile: Tile, processor: Processor, address: int) -> bool:
    """True if a kernel computes a small product with a known result correctly.

    Rows and lanes are a whole tile and remainders, so that tiles of all heights run; of AMX, those with one
    and with two registers of rows, and more k than a register has. Every entry is a k-block, so that sums
    are added to earlier ones. All strides differ. If A may be packed, both ways are tested.
    """
    count = (tile.vectors + 1) * lanes_of(processor, dtype)
    channels, neurons, images = (36, 41, 43) if tile == AMX_TILE else (2, count + 7, count + 5)
    shape, window = MapShape(channels, 5, 4), Window(3, 1)
    layer = BlockLocal(shape, Window(3, 2), window, rows=1, columns=1, depth=neurons)
    trial = _SelfTestCase(layer, images, dtype)
    problem = trial.problem(KINDS[kind])
    copied = (False, True) if problem.kind.panels and dtype not in HALVES else (False,)
    return all(
        trial.passes(
            prepare_product(problem, Execution(tile, processor, k_block=1, panels=panels), address), kind
        )
        for panels in copied
    )


class _SelfTestCase:
    """Operands of one layer, and the expected results of its products."""

    def __init__(self, layer: BlockLocal, images: int, dtype: str) -> None:
        self.layer, self.images, self.dtype, self.error = layer, images, dtype, ROUNDING[dtype]
        shape, out = layer.input, layer.output
        self.x = self_test_reference.sample_values(shape.height, shape.width, shape.channels, images)
        self.y = self_test_reference.sample_values(out.height, out.width, out.channels, images, seed=1)
        self.filters = self_test_reference.sample_values(*layer.filters_shape, seed=2)
        self.right = self_test_reference.Products(layer)

    def problem(self, kind: ProductKind) -> Problem:
        """Return the problem of a kind of product of these operands."""
        x, y = required_map_strides(self._map(self.x)), required_map_strides(self._map(self.y))
        return Problem(kind, self.layer, self.images, self.dtype, x, y)

    def passes(self, ready: PreparedProduct, kind: str) -> bool:
        """Return True if the result of a prepared product is correct."""
        x, y, filters = self._map(self.x), self._map(self.y), self._dense(self.filters)
        if kind == "step":
            return self._steps(ready, x, y, filters)
        if kind == "outer":
            filters.fill_(torch.nan)
        else:
            (x if kind == "adjoint" else y).fill_(torch.nan)
        biases = self_test_reference.sample_values(*self.layer.norms_shape, seed=3)
        added, curve = self._dense(biases), kind.removeprefix("product_")
        finished = curve in self_test_reference.CURVES
        addresses = [pointer_of(one) for one in (x, y, filters, *([added] if finished else []))]
        ready.run(*addresses)
        if kind == "adjoint":
            return self_test_reference.map_agrees(x, self.right.adjoint(self.y, self.filters))
        if kind == "outer":
            return self_test_reference.is_close(filters, self.right.outer(self.y, self.x))
        sums = self.right.product(self.x, self.filters)
        if not finished:
            return self_test_reference.map_agrees(y, sums)
        return self_test_reference.map_agrees(
            y, self_test_reference.CURVES[curve](sums + biases[..., None]), self.error
        )

    def _steps(self, ready: PreparedProduct, x: Tensor, y: Tensor, filters: Tensor) -> bool:
        """Test a step; both pairs of maps are the same, so that the gradient is twice one product."""
        past = self_test_reference.sample_values(*self.layer.filters_shape, seed=4)
        gradient = 2 * self.right.outer(self.y, self.x)
        expected = self_test_reference.filter_step(self.filters, past, gradient, CONSTANTS)
        found = filters, self._dense(past), filters.square().sum((2, 3)).sqrt()
        constants = torch.tensor(CONSTANTS, dtype=torch.float64, device="cpu")
        run_step(ready, (y, x), (y, x), found, constants)
        return all(map(partial(self_test_reference.is_close, error=self.error), found, expected))

    def _dense(self, values: Array) -> Tensor:
        return self_test_reference.as_tensor(values, self.dtype)

    def _map(self, values: Array) -> Tensor:
        """Return a map as part of a larger batch, of different sizes for x and y."""
        beside = 3 if values.shape == self.x.shape else 9
        padded = np.pad(values, [(0, 0)] * 3 + [(0, beside)], constant_values=np.nan)
        return self_test_reference.as_map(padded, self.dtype)[: values.shape[3]]
