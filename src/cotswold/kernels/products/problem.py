"""A product of a block-local layer without its operands: all that its plan and its tile depend on.

Knows: which kind of kernel a product takes, which operand is A, B or C, how much work it is. Does not know:
which tile is best, where kernels come from, autograd.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from cotswold.geometry import BlockLocal, Box, Region
from cotswold.kernels.compile.emit import BYTES
from cotswold.kernels.machine.processor import Processor, this_processor
from cotswold.kernels.microkernels.activation import CURVES
from cotswold.kernels.microkernels.driver import (
    ADJOINT,
    OUTER,
    PRODUCT,
    PRODUCT_FEW,
    STEP,
    ProductJob,
    ProductKind,
)
from cotswold.kernels.microkernels.pairs import Units
from cotswold.kernels.microkernels.tile import Tile
from cotswold.kernels.operands import HALVES, Pitches, name_of
from cotswold.kernels.products.plan import Grain, Plan
from cotswold.kernels.products.plan_adjoint import adjoint_plan
from cotswold.kernels.products.plan_outer import outer_plan, step_plan
from cotswold.kernels.products.plan_product import few_plan, product_plan

FEW_GAIN = 1.15
"""By how much neurons in the lanes must save work, for their results are transposed afterwards."""
PAGE_BYTES = 4096
"""A pitch of A from which on copying it pays."""
LANES_LEAST = 96
"""Images from which on several tiles of lanes read one panel."""
PACKED_ROWS = 4
"""Rows of products of pairs that take as long as packing what they are multiplied with."""


@dataclass(frozen=True)
class Overrides:
    """What is otherwise chosen, for tests and measurements; ``few``: whether neurons are in the lanes."""

    processor: Processor | None = None
    tile: Tile | None = None
    threads: int | None = None
    few: bool | None = None


NO_OVERRIDES = Overrides()


@dataclass(frozen=True)
class Extents:
    """What the best tile depends on: rows of a task, its k in all and that of an entry, narrow lanes."""

    rows: int
    depth: int
    entry: int
    narrow: bool
    """Whether the lanes fill one vector at most."""


@dataclass(frozen=True)
class Problem:
    """A kind of product of a layer, on maps of these pitches; of a region of its result, if one is named."""

    kind: ProductKind
    layer: BlockLocal
    images: int
    dtype: str
    """The type of the operands, as kernels call it."""
    x: Pitches
    """Those of the layer's input map."""
    y: Pitches
    """Those of its output map."""
    only: Region | None = None
    adding: bool = False
    """Whether what is in C is added to."""

    @cached_property
    def flops(self) -> float:
        """Two for each multiplication and addition."""
        times = 2 if self.kind is STEP else 1
        return self.layer.product_flops * self.images * times * self._share

    @property
    def _share(self) -> float:
        """The part of the whole product that is computed, where a region is."""
        if self.only is None:
            return 1.0
        below = (self.layer.input.height, self.layer.input.width)
        plane = below if self.kind is ADJOINT else self.layer.grid
        inside = self.only.box.intersect(Box.whole(plane)).size / (plane[0] * plane[1])
        return 1 - inside if self.only.outside else inside

    @property
    def places(self) -> tuple[ProductJob, ProductJob, ProductJob]:
        """Which operand of the kernel the input map is, which the output map, which the filters."""
        if self.kind is ADJOINT:
            return ProductJob.C, ProductJob.B, ProductJob.A
        if self.kind in (OUTER, STEP):
            return ProductJob.A, ProductJob.B, ProductJob.C
        return (
            (ProductJob.A, ProductJob.C, ProductJob.B)
            if self.kind is PRODUCT_FEW
            else (ProductJob.B, ProductJob.C, ProductJob.A)
        )

    @property
    def operand_pitches(self) -> tuple[int, int]:
        """The pitches of A and B."""
        pitches = dict(zip(self.places, (self.x.channel, self.y.channel, self.layer.neurons), strict=True))
        return pitches[ProductJob.A], pitches[ProductJob.B]

    def extents(self, processor: Processor) -> Extents:
        """What its tile depends on."""
        layer, images, lanes = self.layer, self.images, lanes_of(processor, self.dtype)
        row = layer.x.size * layer.input.channels
        if self.kind in (OUTER, STEP):
            return Extents(row, images, images, layer.neurons <= lanes)
        if self.kind is ADJOINT:
            rows = min(layer.x.stride, layer.x.size) * layer.input.channels
            return Extents(rows, layer.fan_in, layer.columns * layer.depth, images <= lanes)
        if self.kind is PRODUCT_FEW:
            return Extents(min(images, 16), layer.fan_in, row, layer.neurons <= lanes)
        return Extents(layer.neurons, layer.fan_in, row, images <= lanes)

    def plan(self, grain: Grain) -> Plan:
        """The tables that its kernel reads."""
        alike = self.layer, self.images, self.x, self.y, grain
        if self.kind is STEP:
            return step_plan(*alike)
        if self.kind is OUTER:
            return outer_plan(*alike)
        if self.kind is ADJOINT:
            return adjoint_plan(*alike, self.only)
        return (few_plan if self.kind is PRODUCT_FEW else product_plan)(*alike, self.only)

    @property
    def panels(self) -> bool:
        """Whether A is copied once a section: its k are a page or more apart, and many lanes read them.

        A field of one row has one entry a section, which is what copies are made of.
        """
        if not self.kind.panels or self.dtype in HALVES or self.layer.y.size > 1:
            return False
        pitch, _ = self.operand_pitches
        return pitch * BYTES[self.dtype] >= PAGE_BYTES and self.images >= LANES_LEAST

    @property
    def measured_as(self) -> Problem:
        """The problem whose tile it takes.

        With an activation, the product alone, whose choice is shared. For a step, ``δx'`` of one row of
        blocks: what a step changes, it must change once. Nor is anything added to what is measured.
        """
        if self.kind is STEP:
            return replace(self, kind=OUTER, layer=self.layer.block_rows(0, 1)[0])
        return replace(self, kind=PRODUCT if self.kind.finish else self.kind, adding=False)


def summed(dtype: str) -> str:
    """The type of sums of products of a type."""
    return "float32" if dtype in HALVES else dtype


def lanes_of(processor: Processor, dtype: str) -> int:
    """Sums in a vector."""
    return processor.lanes(summed(dtype))


def processor_of(overrides: Overrides = NO_OVERRIDES) -> Processor:
    """The processor that code is written for."""
    found = overrides.processor or this_processor()
    assert found is not None, "asked for kernels on a processor that has none; see `available`"
    return found


def neurons_in_lanes(images: int, layer: BlockLocal, dtype: str, overrides: Overrides = NO_OVERRIDES) -> bool:
    """Whether images fill no vector, and neurons fill them better; larger batches share their kernels."""
    if overrides.few is not None:
        return overrides.few
    processor = processor_of(overrides)
    lanes = lanes_of(processor, dtype)
    if images > lanes:
        return False
    rows = images + (PACKED_ROWS if dtype in HALVES and Units.of(dtype, processor).paired else 0)
    of_images, of_neurons = layer.neurons * -(-images // lanes), rows * -(-layer.neurons // lanes)
    return of_neurons * FEW_GAIN < of_images


def finishes(images: int, dtype: torch.dtype, layer: BlockLocal, activation: str) -> bool:
    """Whether biases and an activation are part of the product: in float32, with images in the lanes.

    Curves take this way for any number of images: the bits of a response must not depend on the batch.
    """
    if dtype != torch.float32 or images == 0:
        return False
    return activation in CURVES or not neurons_in_lanes(images, layer, name_of(dtype))
