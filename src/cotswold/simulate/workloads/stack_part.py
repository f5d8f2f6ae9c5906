"""One stack over a grid, whose operations are recorded for every rank in the order of `mesh.stacks.step`.

Knows: the bytes and FLOPs of each operation and exchange, from the plans of a mesh. Does not know: other
stacks except the one below, passing time, hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from cotswold.geometry import BlockLocal, Box, ExchangePlan, StackPartition, Transfer
from cotswold.simulate.hardware.cluster import MemoryBoundOp, Product
from cotswold.simulate.hardware.device import DeviceModel, RateShape
from cotswold.simulate.timeline.actions import PendingExchange, Script


def weights(part: StackPartition, rank: int) -> int:
    """Number of filter weights of a rank."""
    layer = part.layer(rank)
    return layer.parameters if layer is not None else 0


def batch_points(part: StackPartition, rank: int) -> int:
    """Number of input values of one image that a rank holds."""
    return part.windows[rank].size * part.geometry.input.channels


def maps_points(part: StackPartition, rank: int) -> int:
    """Number of further values of one image that a step holds.

    They are two windows, two maps of responses, three of pooling units.
    """
    window = part.windows[rank].size * part.geometry.input.channels
    responses = part.pooling.reads[rank].size + part.responses.box(rank).size
    pooled = 3 * part.normalisation.reads[rank].size
    return 2 * window + (responses + pooled) * part.geometry.responses.channels


@dataclass(frozen=True)
class StackPart:
    """One stack on a grid, which records its operations in the script."""

    cut: StackPartition
    images: int
    value_bytes: int
    speed: DeviceModel
    script: Script

    @property
    def layer(self) -> BlockLocal:
        """The stack's filters."""
        return self.cut.geometry.filters

    @cached_property
    def shape(self) -> RateShape:
        """Key of its rates."""
        return RateShape(self.layer.fan_in, self.layer.neurons, self.images)

    @property
    def input_bytes(self) -> int:
        """Bytes of a pixel of the input map, for all images."""
        return self.layer.input.channels * self.images * self.value_bytes

    @property
    def unit_bytes(self) -> int:
        """Bytes of a position of the maps of responses and pooling units."""
        return self.layer.output.channels * self.images * self.value_bytes

    # -- exchanges: packed by the sender, unpacked by the receiver

    def post(self, what: str, plan: ExchangePlan, point_bytes: int) -> PendingExchange:
        """Record packing and sending."""
        self._pass("pack", [2.0 * point_bytes * _points(plan.sends(rank)) for rank in self.script.ranks])
        return self.script.post(what, plan, point_bytes)

    def wait(self, pending: PendingExchange) -> None:
        """Record waiting and unpacking."""
        self.script.wait(pending)
        received = [_points(pending.plan.receives(rank)) for rank in self.script.ranks]
        self._pass("pack", [2.0 * pending.point_bytes * each for each in received])

    # -- operations

    @cached_property
    def working_set_bytes(self) -> tuple[int, ...]:
        """Working set in bytes of a rank's product: its filters, its window, its responses."""
        return tuple(
            weights(self.cut, rank) * self.value_bytes
            + self.cut.windows[rank].size * self.input_bytes
            + self.cut.responses.box(rank).size * self.unit_bytes
            for rank in self.script.ranks
        )

    def product(self, operation: Product, flops: Sequence[int]) -> None:
        """Record a product with these FLOPs per rank; the moved bytes are proportional to them."""
        self.script.add_work(
            operation,
            [
                self.speed.product(operation, self.shape, part, held * part // max(all_, 1), held)
                for part, all_, held in zip(flops, self.all_flops, self.working_set_bytes, strict=True)
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
        """FLOPs of a product over those blocks whose windows are inside a rank's own box."""
        return self._flops(
            lambda rank: self.layer.blocks_within(here[rank]).intersect(self.cut.blocks.box(rank))
        )

    @cached_property
    def own_pixel_flops(self) -> list[int]:
        """FLOPs of W'z for a rank's own pixels."""
        each = 2 * self.images * self.layer.input.channels * self.layer.neurons
        return [
            each * _overlap(self.layer, self.cut.blocks.box(rank), self.cut.input.box(rank))
            for rank in self.script.ranks
        ]

    def _pass(self, operation: MemoryBoundOp, moved: Sequence[float]) -> None:
        self.script.add_work(
            operation,
            [
                self.speed.memory_bound(operation, self.shape, each, held)
                for each, held in zip(moved, self.working_set_bytes, strict=True)
            ],
        )

    def units(self, operation: MemoryBoundOp, responses: float, pooled: float, outputs: float = 0.0) -> None:
        """Record passes over a rank's responses, pooling units and outputs."""
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

    def pixels(self, operation: MemoryBoundOp, passes: float) -> None:
        """Record passes over a rank's own pixels of the input map."""
        own = [self.cut.input.box(rank).size for rank in self.script.ranks]
        self._pass(operation, [passes * self.input_bytes * points for points in own])

    # -- a forward pass, a step: the order of `mesh.stacks.step`

    def responses(self, below: StackPart | None) -> None:
        """Record Wx, overlapped with the exchange of the map below; images come from a rank's own store."""
        if below is None:
            self.product("Wx", self.all_flops)
        else:
            here = below.cut.output.boxes
            self.fetched_product(
                self.post("input", ExchangePlan(here, self.cut.windows), self.input_bytes), here
            )
        self.units("maps", responses=2, pooled=0)

    def fetched_product(self, pending: PendingExchange, here: Sequence[Box]) -> None:
        """Record Wx of the blocks that only see local pixels, and of the others after the exchange."""
        inner = self.inner_flops(here)
        self.product("Wx", inner)
        self.wait(pending)
        self.product("Wx", [a - b for a, b in zip(self.all_flops, inner, strict=True)])

    def forward(self, below: StackPart | None) -> None:
        """Record the forward pass."""
        self.responses(below)
        self.wait(self.post("pooling", self.cut.pooling, self.unit_bytes))
        self.units("pool", responses=1, pooled=1)
        if self.cut.geometry.norm.size > 1:
            self.wait(self.post("normalisation", self.cut.normalisation, self.unit_bytes))
            self.units("norm", responses=0, pooled=3, outputs=3)

    def step(self, below: StackPart | None, *, upstream: bool, descend: bool) -> None:
        """Record objective, gradient and step, with the gradients from above and to below."""
        self.responses(below)
        pooling = self.post("pooling", self.cut.pooling, self.unit_bytes)
        self.decode("decoded")
        self.pixels("residual", 9)  # two products of maps, the residual, its square, its scale
        residual = self.post("residual", self.cut.pixels, self.input_bytes)
        self.wait(pooling)
        self.units("pool", responses=1, pooled=1)
        self.units("maps", responses=0, pooled=1)
        if upstream and self.cut.geometry.norm.size > 1:
            self.wait(self.post("normalisation", self.cut.normalisation, self.unit_bytes))
            self.units("norm'", responses=0, pooled=6, outputs=2)
            back = self.post("normalisation'", self.cut.normalisation.adjoint, self.unit_bytes)
            self.wait(back)
        self.units("pool'", responses=2, pooled=2)
        slopes = self.post("slopes", self.cut.pooling.adjoint, self.unit_bytes)
        self.fetched_product(residual, self.cut.input.boxes)
        self.wait(slopes)
        self.units("maps", responses=5, pooled=0)  # over the norms, with slopes added
        if descend:
            assert below is not None, "the lowest stack has no stack below for its gradient"
            self.decode("gradient")
            self.pixels("maps", 6)
            descent = ExchangePlan(self.cut.input.boxes, below.cut.output.boxes)
            self.wait(self.post("descent", descent, self.input_bytes))
        self.product("δx'", [2 * each for each in self.all_flops])
        passes = self.speed.device.update_passes * self.value_bytes
        self._pass("update", [passes * weights(self.cut, rank) for rank in self.script.ranks])

    def decode(self, what: str) -> None:
        """Record W'z: first the pixels of other ranks, whose sums are sent during the rest."""
        own = self.own_pixel_flops
        self.units("maps", responses=2, pooled=0)
        self.product("W'x", [a - b for a, b in zip(self.all_flops, own, strict=True)])
        pending = self.post(what, self.cut.pixels.adjoint, self.input_bytes)
        self.product("W'x", own)
        self.wait(pending)


def _points(transfers: Sequence[Transfer]) -> int:
    return sum(each.box.size for each in transfers)


def _overlap(layer: BlockLocal, blocks: Box, pixels: Box) -> int:
    """Number of pairs of a block and one of these pixels that it sees."""
    axes = (layer.y, layer.input.height), (layer.x, layer.input.width)
    counts = []
    for axis, (window, extent) in enumerate(axes):
        start, stop = pixels.start[axis], pixels.stop[axis]
        reads = (window.reads(at, extent) for at in range(blocks.start[axis], blocks.stop[axis]))
        counts.append(sum(max(0, min(stop, last) - max(start, first)) for first, last in reads))
    return prod(counts)
