"""The update of a network of stacks over a grid, action by action (Coates et al. 2013, sections 4.2 and 5.1).

Knows: which operations a mesh runs in which order, and the bytes and FLOPs of each from the plans by which it
moves them. Does not know: time that passes, hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal

from cotswold.geometry import BlockLocal, Box, ExchangePlan, Grid, StackGeometry, StackPartition, Transfer
from cotswold.simulate.actions import Pending, Program, Script
from cotswold.simulate.cluster import Passing, Product
from cotswold.simulate.device import Shape, Speed

SCALARS_BYTES = 8 * 4
"""What one update reduces over all ranks: overlap, energy, residual, penalty."""


@dataclass(frozen=True)
class StackWork:
    """Stacks from the input upwards, a batch, how they learn: `greedy`, the top one moves; `joint`, all."""

    stacks: tuple[StackGeometry, ...]
    images: int
    strategy: Literal["greedy", "joint"]
    value_bytes: int = 4

    @property
    def parameters(self) -> int:
        """Filter weights of all stacks."""
        return sum(stack.filters.parameters for stack in self.stacks)

    @property
    def update_flops(self) -> int:
        """FLOPs of an update, products alone."""
        products = [stack.filters.product_flops for stack in self.stacks]
        if self.strategy == "greedy":
            return self.images * (sum(products[:-1]) + 5 * products[-1])
        return self.images * (sum(products[:-1]) + 5 * sum(products) + sum(products[1:]))

    def programs(self, grid: Grid, speed: Speed) -> tuple[Program, ...]:
        """What every rank of a grid does in an update."""
        script = Script(grid.size)
        parts = [
            _Part(StackPartition(stack, grid), self.images, self.value_bytes, speed, script)
            for stack in self.stacks
        ]
        top = len(parts) - 1
        for index, part in enumerate(parts[:-1]):
            part.forward(parts[index - 1] if index else None)
        parts[top].step(parts[top - 1] if top else None, above=None, gradient=self._to_below(top))
        if self.strategy == "joint":
            for index in reversed(range(top)):
                parts[index].step(None, above=parts[index + 1], gradient=self._to_below(index))
        script.meet(SCALARS_BYTES)
        return script.programs

    def rank_bytes(self, grid: Grid) -> int:
        """Memory of the rank that needs most: filters, momentum of what learns, the maps of one stack."""
        parts = [StackPartition(stack, grid) for stack in self.stacks]
        learns = [self.strategy == "joint" or part is parts[-1] for part in parts]
        needed = []
        for rank in range(grid.size):
            weights = [_weights(part, rank) for part in parts]
            maps = [_maps_points(part, rank) * self.images for part in parts]
            inputs = sum(_batch_points(part, rank) for part in parts) * self.images
            kept = sum(weights) + sum(w for w, each in zip(weights, learns, strict=True) if each)
            needed.append((kept + inputs + max(maps)) * self.value_bytes)
        return max(needed)

    def _to_below(self, index: int) -> bool:
        return self.strategy == "joint" and index > 0


def _weights(part: StackPartition, rank: int) -> int:
    layer = part.layer(rank)
    return layer.parameters if layer is not None else 0


def _batch_points(part: StackPartition, rank: int) -> int:
    return part.windows[rank].size * part.geometry.input.channels


def _maps_points(part: StackPartition, rank: int) -> int:
    """Decoded map, residual, two maps of responses, three of pooling units."""
    window = part.windows[rank].size * part.geometry.input.channels
    responses = part.pooling.reads[rank].size + part.responses.box(rank).size
    pooled = 3 * part.normalisation.reads[rank].size
    return 2 * window + (responses + pooled) * part.geometry.responses.channels


@dataclass(frozen=True)
class _Part:
    """One stack on a grid, which writes its operations into the script."""

    cut: StackPartition
    images: int
    value_bytes: int
    speed: Speed
    script: Script

    @property
    def layer(self) -> BlockLocal:
        return self.cut.geometry.filters

    @cached_property
    def shape(self) -> Shape:
        return Shape(self.layer.fan_in, self.layer.neurons, self.images)

    @property
    def input_bytes(self) -> int:
        """Bytes of a pixel of the input map, all images."""
        return self.layer.input.channels * self.images * self.value_bytes

    @property
    def unit_bytes(self) -> int:
        """Bytes of a position of the maps of responses and pooling units."""
        return self.layer.output.channels * self.images * self.value_bytes

    # -- exchanges: packed by the sender, unpacked by the receiver

    def post(self, what: str, plan: ExchangePlan, point_bytes: int) -> Pending:
        self._pass("pack", [2.0 * point_bytes * _points(plan.sends(rank)) for rank in self.script.ranks])
        return self.script.post(what, plan, point_bytes)

    def wait(self, pending: Pending, point_bytes: int) -> None:
        self.script.wait(pending)
        plan = pending.plan
        self._pass("pack", [2.0 * point_bytes * _points(plan.receives(rank)) for rank in self.script.ranks])

    # -- operations

    @cached_property
    def held(self) -> tuple[int, ...]:
        """Bytes that a rank works on in a product: its filters, its window, its responses."""
        return tuple(
            _weights(self.cut, rank) * self.value_bytes
            + self.cut.windows[rank].size * self.input_bytes
            + self.cut.responses.box(rank).size * self.unit_bytes
            for rank in self.script.ranks
        )

    def product(self, operation: Product, flops: Sequence[int]) -> None:
        """A product, of which every rank does so many FLOPs; what it moves shrinks with them."""
        whole = self._flops(lambda rank: self.cut.blocks.box(rank))
        self.script.flops += sum(flops)
        self.script.work(
            operation,
            [
                self.speed.product(operation, self.shape, part, held * part // max(all_, 1), held)
                for part, all_, held in zip(flops, whole, self.held, strict=True)
            ],
        )

    def _flops(self, blocks: Callable[[int], Box]) -> list[int]:
        boxes = [blocks(rank) for rank in self.script.ranks]
        return [self.images * self.layer.part(box)[0].product_flops if box.size else 0 for box in boxes]

    @cached_property
    def all_flops(self) -> list[int]:
        """FLOPs of a rank's product over all of its blocks."""
        return self._flops(self.cut.blocks.box)

    def inner_flops(self, here: Sequence[Box]) -> list[int]:
        """FLOPs of a product over those blocks whose windows lie within what a rank has."""
        return self._flops(lambda rank: _within(self.cut, rank, here[rank]))

    @cached_property
    def own_pixel_flops(self) -> list[int]:
        """FLOPs of W'z for a rank's own pixels."""
        each = 2 * self.images * self.layer.input.channels * self.layer.neurons
        return [
            each * _overlap(self.layer, self.cut.blocks.box(rank), self.cut.input.box(rank))
            for rank in self.script.ranks
        ]

    def _pass(self, operation: Passing, moved: Sequence[float]) -> None:
        self.script.work(
            operation,
            [
                self.speed.passing(operation, self.shape, each, held)
                for each, held in zip(moved, self.held, strict=True)
            ],
        )

    def units(self, operation: Passing, responses: float, pooled: float, outputs: float = 0.0) -> None:
        """Pass so many times over a rank's responses, pooling units and outputs."""
        self._pass(
            operation,
            [
                self.unit_bytes
                * (
                    responses * self.cut.responses.box(rank).size
                    + pooled * self.cut.pooled.box(rank).size
                    + outputs * self.cut.output.box(rank).size
                )
                for rank in self.script.ranks
            ],
        )

    def pixels(self, passes: float) -> None:
        """Pass so many times over a rank's own pixels of the input map."""
        self._pass(
            "maps", [passes * self.input_bytes * self.cut.input.box(rank).size for rank in self.script.ranks]
        )

    # -- a forward pass, a step

    def responses(self, below: _Part | None) -> None:
        """Wx. What the stack below computed elsewhere arrives meanwhile; pictures come from a rank's own
        store."""
        if below is None:
            self.product("Wx", self.all_flops)
        else:
            here = below.cut.output.boxes
            pending = self.post("input", ExchangePlan(here, self.cut.windows), self.input_bytes)
            inner = self.inner_flops(here)
            self.product("Wx", inner)
            self.wait(pending, self.input_bytes)
            self.product("Wx", [a - b for a, b in zip(self.all_flops, inner, strict=True)])
        self.units("maps", responses=2, pooled=0)

    def forward(self, below: _Part | None) -> None:
        """The stack's output."""
        self.responses(below)
        self.wait(self.post("pooling", self.cut.pooling, self.unit_bytes), self.unit_bytes)
        self.units("pool", responses=1, pooled=1)
        if self.cut.geometry.norm.size > 1:
            self.wait(self.post("normalisation", self.cut.normalisation, self.unit_bytes), self.unit_bytes)
            self.units("norm", responses=0, pooled=3, outputs=3)

    def step(self, below: _Part | None, above: _Part | None, *, gradient: bool) -> None:
        """Objective, gradient and step; with ``gradient`` also that of the stack's input, for the one
        below."""
        self.responses(below)
        own = self.own_pixel_flops
        pooling = self.post("pooling", self.cut.pooling, self.unit_bytes)
        self.units("maps", responses=2, pooled=0)  # z over its norms
        sums = self._decode("decoded", own)
        self.wait(pooling, self.unit_bytes)
        self.units("pool", responses=1, pooled=1)
        self.wait(sums, self.input_bytes)
        self.pixels(9)  # two products of maps, the residual, its square, its scale
        residual = self.post("residual", self.cut.pixels, self.input_bytes)
        self._slopes(above)
        self.units("pool'", responses=1, pooled=1)
        slopes = self.post("slopes", self.cut.pooling.adjoint, self.unit_bytes)
        inner = self.inner_flops(self.cut.input.boxes)
        self.product("Wx", inner)
        self.wait(residual, self.input_bytes)
        self.product("Wx", [a - b for a, b in zip(self.all_flops, inner, strict=True)])
        self.wait(slopes, self.unit_bytes)
        self.units("maps", responses=10, pooled=0)  # the gradient by z, in four passes
        if gradient:
            encoded = self._decode("gradient", own)
            self.wait(encoded, self.input_bytes)
            self.pixels(3)
        self.product("δx'", [2 * each for each in self.all_flops])
        passes = self.speed.device.update_passes * self.value_bytes
        self._pass("update", [passes * _weights(self.cut, rank) for rank in self.script.ranks])

    def _decode(self, what: str, own: Sequence[int]) -> Pending:
        """W'z: first the pixels of others, whose sums then travel."""
        self.product("W'x", [a - b for a, b in zip(self.all_flops, own, strict=True)])
        pending = self.post(what, self.cut.pixels.adjoint, self.input_bytes)
        self.product("W'x", own)
        return pending

    def _slopes(self, above: _Part | None) -> None:
        """The gradient by the pooling units: of the penalty, and of the stacks above."""
        if above is None:
            self.units("maps", responses=0, pooled=2)
            return
        plan = ExchangePlan(above.cut.input.boxes, self.cut.output.boxes)
        self.wait(self.post("from above", plan, self.unit_bytes), self.unit_bytes)
        if self.cut.geometry.norm.size > 1:
            self.units("norm'", responses=0, pooled=6, outputs=2)
            back = self.post("normalisation'", self.cut.normalisation.adjoint, self.unit_bytes)
            self.wait(back, self.unit_bytes)
        self.units("maps", responses=0, pooled=3)


def _points(transfers: Sequence[Transfer]) -> int:
    return sum(each.box.size for each in transfers)


def _axes(
    layer: BlockLocal, blocks: Box, pixels: Box
) -> Iterator[tuple[list[tuple[int, int]], int, tuple[int, int]]]:
    """By axis: what each of some blocks reads, the first block, and the first and last of some pixels."""
    axes = (layer.y, layer.input.height), (layer.x, layer.input.width)
    for axis, (window, extent) in enumerate(axes):
        low, high = blocks.start[axis], blocks.stop[axis]
        reads = [window.reads(index, extent) for index in range(low, high)]
        yield reads, low, (pixels.start[axis], pixels.stop[axis])


def _overlap(layer: BlockLocal, blocks: Box, pixels: Box) -> int:
    """Pairs of a block and one of these pixels that it sees."""
    return prod(
        sum(max(0, min(stop, last) - max(start, first)) for first, last in reads)
        for reads, _, (start, stop) in _axes(layer, blocks, pixels)
    )


def _within(cut: StackPartition, rank: int, here: Box) -> Box:
    """A rank's blocks whose windows lie within a box."""
    edges = []
    for reads, low, (start, stop) in _axes(cut.geometry.filters, cut.blocks.box(rank), here):
        inside = [low + i for i, (first, last) in enumerate(reads) if start <= first and last <= stop]
        edges.append((inside[0], inside[-1] + 1) if inside else (low, low))
    return Box(tuple(low for low, _ in edges), tuple(high for _, high in edges))
