"""Locally connected layers, pooling and contrast normalisation over ranks.

Knows: which pixels a box of outputs sees, clipped to the map, so that padding is skipped as in one process.
Does not know: messages (`SpatialLayer` exchanges the halo).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from cotswold import nn, ops
from cotswold.errors import GeometryError
from cotswold.geometry import BlockLocal, Box, MapShape, Smoothing
from cotswold.mesh.maps.crop import crop
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.maps.windows import ReceptiveField
from cotswold.mesh.modules import overlapped
from cotswold.mesh.modules.layer import SpatialLayer
from cotswold.mesh.modules.parameters import local_of
from cotswold.nn.layer_base import autocast
from cotswold.ops.products import has_regions


class PartitionedLocal2d(SpatialLayer):
    """A `LocallyConnected2d` of which each rank holds some blocks; bit-identical to one process."""

    sharded: Mapping[str, tuple[int, int]] = MappingProxyType({"weight": (0, 1), "bias": (0, 1)})
    hides_parts = True
    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.LocallyConnected2d) -> None:
        super().__init__()
        self.geometry: BlockLocal = layer._planes[0].layer
        self._arguments = layer.extra_repr()
        self.register_parameter("bias", None)

    def forward(self, x: Any) -> Any:
        """Return the responses; raises GeometryError, on all ranks alike, for maps with other channels."""
        if x.dim() == 4 and x.shape[1] != self.geometry.input.channels:
            raise GeometryError(
                f"LocallyConnected2d was built for maps of {self.geometry.input}, got {x.shape[1]} channels"
            )
        return super().forward(x)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the layer's output size; raises GeometryError for a map of another size."""
        if (height, width) != (self.geometry.input.height, self.geometry.input.width):
            raise GeometryError(
                f"LocallyConnected2d was built for maps of {self.geometry.input}, got {height} x {width}"
            )
        return self.geometry.output.height, self.geometry.output.width

    def input_box(self, output: Box) -> Box:
        """Return the box that the blocks see, without padding."""
        return self.geometry.part(self._blocks_of(output))[1]

    def forward_window(self, window: Tensor, output: Box) -> Tensor:
        """Return the responses of the blocks."""
        part = self.geometry.part(self._blocks_of(output))[0]
        window, weight, *bias = autocast(window, *self._own())
        if bias:
            return ops.local_layer(window, weight, bias[0], part)
        return ops.local_product(window, weight, part)

    def _forward_map(self, x: DistributedMap) -> DistributedMap:
        windows = self._windows(x)
        box = windows.partition.box(x.mesh.rank)
        busy = all(one.size for one in windows.partition.boxes)
        # All ranks decide alike, so that they send equally many messages for derivatives of any order.
        if x.mesh.size == 1 or x.halo_boxes is not None or not busy or not _all_in_regions(x):
            return super()._forward_map(x)
        part, weight, *biases = autocast(x.local, *self._own())
        layer = self.geometry.part(self._blocks_of(box))[0]
        out = overlapped.local_layer(part, weight, biases[0] if biases else None, windows.exchange, layer)
        return DistributedMap(out, windows.partition, x.mesh)

    def _own(self) -> list[Tensor]:
        """This rank's filters, and biases if it has any."""
        return [local_of(values) for values in (self.weight, self.bias) if values is not None]

    def _blocks_of(self, output: Box) -> Box:
        size = self.geometry.rows, self.geometry.columns
        start, stop = (
            tuple(at // n for at, n in zip(edge, size, strict=True)) for edge in (output.start, output.stop)
        )
        return Box(start, stop)

    def extra_repr(self) -> str:
        """Return the layer's arguments."""
        return self._arguments


def _all_in_regions(x: DistributedMap) -> bool:
    """True if the kernels of every rank supported regions for maps of this type at the first call.

    If a kernel fails its self-test later, torch computes the regions.
    """

    def agreed() -> bool:
        lacking = torch.tensor([int(not has_regions(x.local))], device="cpu")
        return x.mesh.largest_in_place(lacking).item() == 0

    return x.mesh.cached((has_regions, x.dtype), agreed)


@dataclass(frozen=True)
class _Clipped:
    """The pixels that a layer's outputs see of a plane (height, width), without padding."""

    layer: PartitionedSmoothing
    plane: tuple[int, int]

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the layer's output size."""
        return self.layer.output_size(height, width)

    def input_box(self, output: Box) -> Box:
        """Return the layer's input box, clipped to the plane."""
        return self.layer.input_box(output).intersect(Box.whole(self.plane))


class PartitionedSmoothing(SpatialLayer):
    """An `L2Pool2d` or `LocalContrastNorm2d`: one or two passes of a window."""

    def __init__(self, layer: nn.L2Pool2d | nn.LocalContrastNorm2d) -> None:
        super().__init__()
        self.smoothing: Smoothing = layer.smoothing
        self.passes = 1 if isinstance(layer, nn.L2Pool2d) else 2
        self._arguments = layer.extra_repr()
        self._compute: Callable[[Tensor], Tensor]
        if isinstance(layer, nn.L2Pool2d):
            epsilon = layer.epsilon
            self._compute = lambda maps: ops.l2_pool(maps, self.smoothing, epsilon)
        else:
            floor = layer.floor
            self._compute = lambda maps: ops.contrast_norm(maps, self.smoothing, floor)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the map's size, less what the windows remove; raises GeometryError if they do not fit."""
        shape = MapShape(1, height, width)
        for _ in range(self.passes):
            shape = self.smoothing.output(shape)
        return shape.height, shape.width

    def input_box(self, output: Box) -> Box:
        """Return the box that the windows see; below and right of the map it is padding."""
        window = self.smoothing.window
        low, reach = self.passes * window.pad_before, self.passes * (window.size - 1)
        return Box(self._first(output), tuple(at - low + reach for at in output.stop))

    def _field(self, plane: tuple[int, int]) -> ReceptiveField:
        return _Clipped(self, plane)

    def _first(self, output: Box) -> tuple[int, ...]:
        # Pooling sums go over squares of 2 x 2 outputs; at even offsets their order equals that of one
        # process.
        low = self.passes * self.smoothing.window.pad_before if self.smoothing.keep else 0
        return tuple(max(at - low, 0) // 2 * 2 for at in output.start)

    def forward_window(self, window: Tensor, output: Box) -> Tensor:
        """Return the outputs whose windows are complete, or end at the border of the map."""
        return crop(self._compute(window), output, Box(self._first(output), output.stop))

    def extra_repr(self) -> str:
        """Return the layer's arguments."""
        return self._arguments
