"""The update of a network of ordinary layers over a grid: forward pass, gradient, plain step.

Source: Dean et al. 2012, section 3; Chilimbi et al. 2014, section 3.2.

Knows: how layers are divided in space or by their outputs, the plans between them, bytes and FLOPs. Does not
know: stacks, passing time, hosts.

Every layer's output is a box (map, y, x). A rank's part of the next layer reads a box of it. So one plan
carries activations up, and its adjoint sums their gradients on the way down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

from cotswold.geometry import BlockLocal, Box, ExchangePlan, Grid, MapShape, Partition, Window
from cotswold.geometry.partition import chunk_bounds
from cotswold.simulate.hardware.cluster import Product
from cotswold.simulate.hardware.device import DeviceModel, RateShape
from cotswold.simulate.timeline.actions import Program, Script

EMPTY_BOX = Box((0, 0, 0), (0, 0, 0))
STEP_PASSES = 2
"""Number of passes of a plain step over the weights: read and write; gradients stay in cache."""


LayerKind = Literal["local", "convolution", "shared", "pool", "full"]


@dataclass(frozen=True)
class LayerGeometry:
    """A layer as a window that moves over a map.

    The kind determines its filters and its division over ranks. `local`: separate filters at each place;
    divided in space. `convolution`: the same filters at all places; divided in space, replicated, with
    gradients summed over ranks. `shared`: the same filters at all places; divided by outputs. `full`: the
    window is the whole map; divided by outputs. `pool`: no filters, map by map; divided like the layer below.
    """

    kind: LayerKind
    input: MapShape
    y: Window
    x: Window
    maps: int
    block: tuple[int, int] = (1, 1)
    """Rows and columns of neurons that share a field."""

    @classmethod
    def full(cls, below: MapShape, units: int) -> LayerGeometry:
        """Return a fully connected layer on everything below."""
        return cls("full", MapShape(below.size, 1, 1), Window(1), Window(1), units)

    @cached_property
    def plane(self) -> BlockLocal:
        """Places, windows and counts of the layer."""
        return BlockLocal(self.input, self.y, self.x, *self.block, self.maps)

    @property
    def output(self) -> MapShape:
        """Shape of the output."""
        return self.plane.output

    @property
    def connections(self) -> int:
        """Number of weights times the places at which each is used; 0 for pooling."""
        return 0 if self.kind == "pool" else self.plane.parameters

    @property
    def weights(self) -> int:
        """Number of different weights."""
        same = self.kind in ("convolution", "shared")
        return self.plane.fan_in * self.plane.neurons if same else self.connections


@dataclass(frozen=True)
class LayerPart:
    """A rank's part of a layer, as boxes (map, y, x) that it computes, and reads of the input."""

    layer: LayerGeometry
    output_box: Box
    reads: Box
    flops: int
    """FLOPs of one product for one image."""
    weights: int
    """Number of weights that the rank holds."""

    def moved_bytes(self, images: int, value_bytes: int) -> int:
        """Bytes that a product reads and writes: weights and both maps."""
        return (self.weights + images * (self.output_box.size + self.reads.size)) * value_bytes


@dataclass(frozen=True)
class LayerWork:
    """An update of a network of layers by plain back-propagation.

    Args:
        layers: The layers, from the input upwards.
        images: Batch size.
        value_bytes: Bytes of a value.
    """

    layers: tuple[LayerGeometry, ...]
    images: int
    value_bytes: int = 4

    @property
    def parameters(self) -> int:
        """Number of different weights."""
        return sum(layer.weights for layer in self.layers)

    @property
    def connections(self) -> int:
        """Number of connections, as Chilimbi et al. count them."""
        return sum(layer.connections for layer in self.layers)

    @property
    def update_flops(self) -> int:
        """FLOPs of the forward pass and both gradients of every layer, without the gradient by the input."""
        flops = [layer.plane.product_flops for layer in self.layers if layer.kind != "pool"]
        return self.images * (3 * sum(flops) - flops[0])

    def parts(self, grid: Grid) -> list[list[LayerPart]]:
        """Return every rank's part of every layer.

        Args:
            grid: Grid of ranks.
        """
        cut: list[list[LayerPart]] = []
        in_space = True
        for layer in self.layers:
            in_space = layer.kind in ("local", "convolution") or (layer.kind == "pool" and in_space)
            if in_space:
                boxes = Partition.even(layer.plane.grid, grid).boxes
                cut.append([_spatial_part(layer, box) for box in boxes])
            else:
                ends = chunk_bounds(layer.maps, grid.size)
                cut.append([_map_part(layer, first, stop) for first, stop in pairwise(ends)])
        return cut

    def programs(self, grid: Grid, speed: DeviceModel) -> tuple[Program, ...]:
        """Return the program of every rank of a grid for one update.

        Each rank reads images from its own store.

        Args:
            grid: Grid of ranks.
            speed: Device of a rank.
        """
        script = Script(grid.size)
        parts = self.parts(grid)
        plans = [_plan(below, above) for below, above in pairwise(parts)]
        for index, row in enumerate(parts):
            if index:
                script.wait(script.post("up", plans[index - 1], self._point_bytes))
            self._compute(script, speed, "Wx", row)
        for index in reversed(range(len(parts))):
            pending = None
            if index:
                self._compute(script, speed, "W'x", parts[index])
                pending = script.post("down", plans[index - 1].adjoint, self._point_bytes)
            self._compute(script, speed, "δx'", parts[index])
            if parts[index][0].layer.kind == "convolution":
                script.all_reduce(self.value_bytes * parts[index][0].layer.weights)
            self._step(script, speed, parts[index])
            if pending is not None:
                script.wait(pending)
        return script.programs

    def rank_bytes(self, grid: Grid) -> int:
        """Return the memory in bytes of the rank that needs most: weights, activations and their gradients.

        Args:
            grid: Grid of ranks.
        """
        parts = self.parts(grid)
        return self.value_bytes * max(
            sum(
                row[rank].weights + 2 * self.images * (row[rank].output_box.size + row[rank].reads.size)
                for row in parts
            )
            for rank in range(grid.size)
        )

    @property
    def _point_bytes(self) -> int:
        return self.images * self.value_bytes

    def _compute(
        self, script: Script, speed: DeviceModel, operation: Product, row: Sequence[LayerPart]
    ) -> None:
        """Record a product, or the pooling or its adjoint in its place."""
        layer = row[0].layer
        shape = RateShape(layer.plane.fan_in, layer.maps, self.images)
        moved = [part.moved_bytes(self.images, self.value_bytes) for part in row]
        if layer.kind != "pool":
            flops = [self.images * part.flops for part in row]
            seconds = [
                speed.product(operation, shape, count, each, each)
                for count, each in zip(flops, moved, strict=True)
            ]
            script.add_work(operation, seconds)
        elif operation != "δx'":
            name: Literal["pool", "pool'"] = "pool" if operation == "Wx" else "pool'"
            script.add_work(name, [speed.memory_bound(name, shape, each, each) for each in moved])

    def _step(self, script: Script, speed: DeviceModel, row: Sequence[LayerPart]) -> None:
        layer = row[0].layer
        shape = RateShape(layer.plane.fan_in, layer.maps, self.images)
        held = [part.moved_bytes(self.images, self.value_bytes) for part in row]
        script.add_work(
            "update",
            [
                speed.memory_bound("update", shape, STEP_PASSES * self.value_bytes * part.weights, each)
                for part, each in zip(row, held, strict=True)
            ],
        )


def _spatial_part(layer: LayerGeometry, blocks: Box) -> LayerPart:
    """Part of a rank that has a box (y, x) of a layer's blocks, with all maps."""
    if not blocks.size:
        return LayerPart(layer, EMPTY_BOX, EMPTY_BOX, 0, 0)
    part, seen = layer.plane.part(blocks)
    rows, columns = layer.block
    first, stop = blocks.start, blocks.stop
    owns = Box((0, rows * first[0], columns * first[1]), (layer.maps, rows * stop[0], columns * stop[1]))
    reads = Box((0, *seen.start), (layer.input.channels, *seen.stop))
    if layer.kind == "pool":
        return LayerPart(layer, owns, reads, 0, 0)
    weights = layer.weights if layer.kind == "convolution" else part.parameters
    return LayerPart(layer, owns, reads, part.product_flops, weights)


def _map_part(layer: LayerGeometry, first: int, stop: int) -> LayerPart:
    """Part of a rank that has some maps of a layer, at all places."""
    if first == stop:
        return LayerPart(layer, EMPTY_BOX, EMPTY_BOX, 0, 0)
    height, width = layer.output.height, layer.output.width
    pool = layer.kind == "pool"  # pooling reads the maps that it writes
    low, high = (first, stop) if pool else (0, layer.input.channels)
    owns = Box((first, 0, 0), (stop, height, width))
    reads = Box((low, 0, 0), (high, layer.input.height, layer.input.width))
    if pool:
        return LayerPart(layer, owns, reads, 0, 0)
    maps = stop - first
    return LayerPart(
        layer, owns, reads, layer.plane.product_flops // layer.maps * maps, layer.plane.fan_in * maps
    )


def _plan(below: Sequence[LayerPart], above: Sequence[LayerPart]) -> ExchangePlan:
    """Plan the exchange from ranks' parts of a layer to what they read of it in the next layer."""
    writes = tuple(part.output_box for part in below)
    if above[0].layer.kind != "full":
        return ExchangePlan(writes, tuple(part.reads for part in above))
    shape = below[0].layer.output  # a full layer reads the map as one column
    everything = Box.whole((shape.channels, shape.height, shape.width))
    return ExchangePlan(writes, tuple(everything if part.output_box.size else EMPTY_BOX for part in above))
