"""A product of a block-local layer without its operands: all that its plan and tile depend on.

Knows: the kind of kernel of a product, which operand is A, B or C, the amount of work. Does not know: the
best tile, the source of kernels, autograd.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from cotswold.geometry import BlockLocal, Box, Region
from cotswold.kernels.compile.emit import BYTES
from cotswold.kernels.machine.processor import Processor, this_processor
from cotswold.kernels.microkernels.activation import CURVES
from cotswold.kernels.microkernels.half_units import Units
from cotswold.kernels.microkernels.kinds import (
    ADJOINT,
    OUTER,
    PRODUCT,
    PRODUCT_SMALL_BATCH,
    STEP,
    ProductKind,
    Tile,
)
from cotswold.kernels.operands import HALVES, MapStrides, name_of
from cotswold.kernels.products.plan import Blocking, GemmPlan
from cotswold.kernels.products.plans import (
    adjoint_plan,
    outer_plan,
    product_plan,
    small_batch_plan,
    step_plan,
)

SMALL_BATCH_GAIN = 1.15
"""Least saving of work for neurons in the lanes, whose results must be transposed."""
PAGE_BYTES = 4096
"""Stride of A from which packing it pays."""
LANES_LEAST = 96
"""Images from which several tiles of lanes read one panel."""
PACKED_ROWS = 4
"""Rows of products of pairs that cost the same as packing their other operand."""


@dataclass(frozen=True)
class Overrides:
    """Overrides of choices, for tests and measurements; ``small_batch``: True for neurons in the lanes."""

    processor: Processor | None = None
    tile: Tile | None = None
    threads: int | None = None
    small_batch: bool | None = None


NO_OVERRIDES = Overrides()


@dataclass(frozen=True)
class TuningShape:
    """Sizes that decide the best tile: rows of a task, its total k, that of an entry, narrow lanes."""

    rows: int
    depth: int
    entry: int
    narrow: bool
    """True if the lanes fill at most one vector."""


@dataclass(frozen=True)
class Problem:
    """A kind of product of a layer, on maps of these strides, optionally of a region of its result."""

    kind: ProductKind
    layer: BlockLocal
    images: int
    dtype: str
    """Dtype of the operands, by the kernels' name."""
    x: MapStrides
    """Strides of the layer's input map."""
    y: MapStrides
    """Strides of the layer's output map."""
    region: Region | None = None
    accumulates: bool = False
    """True to add to C instead of overwriting it."""
    tied: bool = False
    """True if all blocks share one block's filters and biases: a convolution. Not for ``δx'``."""

    @cached_property
    def flops(self) -> float:
        """FLOPs: two for each multiply-add."""
        times = 2 if self.kind is STEP else 1
        return self.layer.product_flops * self.images * times * self._share

    @property
    def _share(self) -> float:
        """Fraction of the whole product that is computed."""
        if self.region is None:
            return 1.0
        below = (self.layer.input.height, self.layer.input.width)
        plane = below if self.kind is ADJOINT else self.layer.grid
        inside = self.region.box.intersect(Box.whole(plane)).size / (plane[0] * plane[1])
        return 1 - inside if self.region.is_outside else inside

    @property
    def operand_roles(self) -> str:
        """Operands of the kernel (A, B or C) that are the input map, the output map and the filters."""
        roles = {ADJOINT: "cba", OUTER: "abc", STEP: "abc", PRODUCT_SMALL_BATCH: "acb"}
        return roles.get(self.kind, "bca")

    @property
    def operand_strides(self) -> tuple[int, int]:
        """Strides of A and B."""
        pitches = dict(
            zip(self.operand_roles, (self.x.channel, self.y.channel, self.layer.neurons), strict=True)
        )
        return pitches["a"], pitches["b"]

    def tuning_shape(self, processor: Processor) -> TuningShape:
        """Return the sizes that decide its tile."""
        layer, images, lanes = self.layer, self.images, lanes_of(processor, self.dtype)
        row = layer.x.size * layer.input.channels
        if self.kind in (OUTER, STEP):
            return TuningShape(row, images, images, layer.neurons <= lanes)
        if self.kind is ADJOINT:
            rows = min(layer.x.stride, layer.x.size) * layer.input.channels
            return TuningShape(rows, layer.fan_in, layer.columns * layer.depth, images <= lanes)
        if self.kind is PRODUCT_SMALL_BATCH:
            return TuningShape(min(images, 16), layer.fan_in, row, layer.neurons <= lanes)
        return TuningShape(layer.neurons, layer.fan_in, row, images <= lanes)

    def plan(self, blocking: Blocking) -> GemmPlan:
        """Return the tables of its kernel."""
        alike = self.layer, self.images, self.x, self.y, blocking
        if self.kind is STEP:
            return step_plan(*alike)
        if self.kind is OUTER:
            return outer_plan(*alike)
        if self.kind is ADJOINT:
            return adjoint_plan(*alike, self.region, self.tied)
        plan = small_batch_plan if self.kind is PRODUCT_SMALL_BATCH else product_plan
        return plan(*alike, self.region, self.tied)

    @property
    def panels(self) -> bool:
        """True if A is packed once per k-block: its k are a page or more apart, and many lanes read them.

        Packing needs one entry per k-block, as a field of one row has.
        """
        if not self.kind.panels or self.dtype in HALVES or self.layer.y.size > 1:
            return False
        pitch, _ = self.operand_strides
        return pitch * BYTES[self.dtype] >= PAGE_BYTES and self.images >= LANES_LEAST

    @property
    def tuning_problem(self) -> Problem:
        """Problem whose tile it uses.

        With an activation, that is the product alone, so that they share a choice. For a step, it is ``δx'``
        of one row of blocks, because a step may change its operands only once. Measurements never add to C.
        """
        if self.kind is STEP:
            return replace(self, kind=OUTER, layer=self.layer.block_rows(0, 1)[0])
        return replace(self, kind=PRODUCT if self.kind.epilogue else self.kind, accumulates=False)


def accumulation_dtype(dtype: str) -> str:
    """Return the accumulation dtype of a dtype."""
    return "float32" if dtype in HALVES else dtype


def lanes_of(processor: Processor, dtype: str) -> int:
    """Return the number of sums in a vector."""
    return processor.lanes(accumulation_dtype(dtype))


def processor_of(overrides: Overrides = NO_OVERRIDES) -> Processor:
    """Return the processor for which code is generated."""
    found = overrides.processor or this_processor()
    assert found is not None, "kernels were requested on an unsupported processor; see `available`"
    return found


def neurons_in_lanes(images: int, layer: BlockLocal, dtype: str, overrides: Overrides = NO_OVERRIDES) -> bool:
    """True if images do not fill a vector and neurons fill it better; larger batches share their kernels."""
    if overrides.small_batch is not None:
        return overrides.small_batch
    processor = processor_of(overrides)
    lanes = lanes_of(processor, dtype)
    if images > lanes:
        return False
    rows = images + (PACKED_ROWS if dtype in HALVES and Units.for_dtype(dtype, processor).paired else 0)
    of_images, of_neurons = layer.neurons * -(-images // lanes), rows * -(-layer.neurons // lanes)
    return of_neurons * SMALL_BATCH_GAIN < of_images


def supports_epilogue(images: int, dtype: torch.dtype, layer: BlockLocal, activation: str) -> bool:
    """True if a product can include biases and an activation: in float32, with images in the lanes.

    tanh and sigmoid are included for any number of images: the bits of a response must not depend on the
    batch.
    """
    if dtype != torch.float32 or images == 0:
        return False
    return activation in CURVES or not neurons_in_lanes(images, layer, name_of(dtype))
