"""Locally connected layers: convolutions with separate (untied) filters at every position.

Knows: parameters, their layout and initial values, how planes of a volume become maps. Does not know: how the
product is computed.

A *block* of neurons shares one receptive field and is contiguous in the output. Block (1, 1) is the ordinary
untied layer. Layers of one and two axes are layers of three axes with leading extents of 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from cotswold import ops
from cotswold.errors import GeometryError
from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.nn.layer_base import (
    Layer,
    as_int,
    autocast,
    batched,
    check_dtype,
    check_shape,
    fill,
    refuse_onnx,
    shaped,
    traced_as_leaf,
)

Extent = int | Sequence[int]
Padding = Extent | Literal["same", "valid"]


@dataclass(frozen=True)
class _Plane:
    """One plane of the grid: the ranges of input planes and field planes it reads, as channels of a map."""

    inputs: tuple[int, int]
    field: tuple[int, int]
    layer: BlockLocal


class _LocallyConnected(Layer):
    """Base of the layers of one, two and three axes."""

    axes: ClassVar[int]
    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        input_size: Extent,
        kernel_size: Extent,
        stride: Extent = 1,
        padding: Padding = 0,
        bias: bool = True,
        block: Extent = 1,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        (self.in_channels,) = _per_axis("in_channels", in_channels, 1, least=1)
        (self.out_channels,) = _per_axis("out_channels", out_channels, 1, least=1)
        self.input_size = _per_axis("input_size", input_size, self.axes, least=1)
        self.kernel_size = _per_axis("kernel_size", kernel_size, self.axes, least=1)
        self.stride = _per_axis("stride", stride, self.axes, least=1)
        self.block = _per_axis("block", block, self.axes, least=1)
        self.padding = (
            padding if isinstance(padding, str) else _per_axis("padding", padding, self.axes, least=0)
        )
        self._planes = _planes(self, _windows(self))
        layer = self._planes[0].layer
        self.grid = (len(self._planes), *layer.grid)[-self.axes :]
        self.output_size = tuple(count * size for count, size in zip(self.grid, self.block, strict=True))
        _, height, _ = self._volume(self.kernel_size)
        self._full = (len(self._planes), *layer.grid, height, self._fan_in() // height, layer.neurons)
        shape = {1: (self.grid[0], *self._full[4:]), 2: self._full[1:], 3: self._full}[self.axes]
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        biases = torch.empty((*self.grid, layer.neurons), device=device, dtype=dtype) if bias else None
        self.bias = None if biases is None else nn.Parameter(biases)
        self.reset_parameters()

    @classmethod
    def from_conv(cls, conv: nn.Conv1d | nn.Conv2d | nn.Conv3d, input_size: Extent) -> Self:
        """Return a layer that computes the same as ``conv``, with untied filters.

        Args:
            conv: A convolution of this layer's dimension, with one group, no dilation and zero padding.
            input_size: Size of the input map: one extent, or one for each axis.

        Raises:
            GeometryError: Another module or dimension, uninitialised weights, groups, dilation, or padding
                other than zeros.
        """
        if not isinstance(conv, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            raise GeometryError(
                f"{cls.__name__}.from_conv needs a torch.nn.Conv{cls.axes}d, got {type(conv).__name__}"
            )
        if conv.groups != 1 or set(conv.dilation) != {1} or conv.padding_mode != "zeros":
            raise GeometryError(
                f"{conv} cannot be untied: a local layer needs groups=1, dilation=1 and padding_mode='zeros'"
            )
        if len(conv.kernel_size) != cls.axes:
            raise GeometryError(
                f"{cls.__name__} cannot be built from {conv}; use LocallyConnected{len(conv.kernel_size)}d"
            )
        like = conv.weight
        if isinstance(like, nn.UninitializedParameter):
            raise GeometryError(
                f"{type(conv).__name__} has uninitialised weights; run it on one input before untying it"
            )
        layer = cls(
            conv.in_channels,
            conv.out_channels,
            input_size,
            conv.kernel_size,
            conv.stride,
            conv.padding,  # type: ignore[arg-type]  # torch types it as any string
            bias=conv.bias is not None,
            device=like.device,
            dtype=like.dtype,
        )
        taps = (
            like.detach().reshape(*like.shape[:2], *layer._volume(layer.kernel_size)).permute(3, 4, 2, 1, 0)
        )
        with torch.no_grad():
            layer.weight.view(layer._full).copy_(taps.reshape(layer._full[3:]))
            if layer.bias is not None and conv.bias is not None:
                layer.bias.copy_(conv.bias)
        return layer

    def reset_parameters(self) -> None:
        """Draw new values as torch.nn.Conv2d does: uniform within 1 / sqrt(fan-in).

        Values are drawn in float32 from torch's CPU generator, so that a seed gives the same network on every
        device.
        """
        bound = 1 / math.sqrt(self._fan_in())
        for values in (self.weight, self.bias):
            if values is not None and not values.is_meta:
                drawn_as = torch.complex64 if values.is_complex() else torch.float32
                drawn = torch.empty(values.shape, dtype=drawn_as, device="cpu").uniform_(-bound, bound)
                fill(values, drawn)

    @traced_as_leaf
    def forward(self, x: Tensor) -> Tensor:
        """Return responses ``(image, channel, *output_size)``, unbatched if ``x`` is.

        Args:
            x: ``(image, in_channels, *input_size)``, or one image without the batch dimension, of the
                weights' dtype.

        Raises:
            GeometryError: Another shape or dtype.
            ExportError: An ONNX export is running.
        """
        refuse_onnx(self)
        check_shape(self, x, (self.in_channels, *self.input_size))
        check_dtype(self, x, self.weight)
        return batched(self._respond, x, self.axes + 1)

    def _respond(self, x: Tensor) -> Tensor:
        x, weight, *bias = autocast(x, self.weight, *([] if self.bias is None else [self.bias]))
        maps = x if self.axes == 2 else self._maps(x)
        if len(self._planes) > 1:
            maps = ops.images_last(maps)
        responses = []
        planes = self._of_planes(weight, self._full)
        biases = self._of_planes(bias[0], (*self._full[:3], self._full[-1])) if bias else None
        for index, plane in enumerate(self._planes):
            read, filters = self._read(maps, plane), self._filters(planes[index], plane)
            if biases is not None:
                responses.append(ops.local_layer(read, filters, biases[index], plane.layer))
            else:
                responses.append(ops.local_product(read, filters, plane.layer))
        behind = self._volume(self.block)[0]
        if len(responses) == behind == 1:
            return shaped(responses[0], (x.shape[0], self.out_channels, *self.output_size))
        # neurons of a block are ordered [plane in block][out channel]
        maps_behind = [each for response in responses for each in response.chunk(behind, 1)]
        return torch.stack(maps_behind, 2)

    def _maps(self, x: Tensor) -> Tensor:
        """Return maps ``(image, plane * channel, y, x)``."""
        return x.reshape(*x.shape[:2], *self._volume(self.input_size)).transpose(1, 2).flatten(1, 2)

    def _read(self, maps: Tensor, plane: _Plane) -> Tensor:
        if len(self._planes) == 1 and plane.inputs == (0, maps.shape[1] // self.in_channels):
            return maps
        start, stop = (edge * self.in_channels for edge in plane.inputs)
        return maps[:, start:stop]

    def _of_planes(self, values: Tensor, shape: Sequence[int]) -> Sequence[Tensor]:
        """Values of each plane of blocks. The gradient of an index would be zeros of the whole and a copy."""
        if len(self._planes) > 1:
            return values.reshape(shape).unbind()
        return (values if self.axes == 2 else values.reshape(shape[1:]),)

    def _filters(self, filters: Tensor, plane: _Plane) -> Tensor:
        depth, _, width = self._volume(self.kernel_size)
        if plane.field == (0, depth):
            return filters
        parts = filters.reshape(*filters.shape[:3], width, depth, self.in_channels, -1)
        return parts[:, :, :, :, slice(*plane.field)].flatten(3, 5)

    def _volume(self, extents: Sequence[int]) -> tuple[int, int, int]:
        depth, height, width = (1,) * (3 - self.axes) + tuple(extents)
        return depth, height, width

    def _fan_in(self) -> int:
        return self.in_channels * math.prod(self.kernel_size)

    def extra_repr(self) -> str:
        """Return the arguments of the constructor as text."""
        return (
            f"{self.in_channels}, {self.out_channels}, input_size={self.input_size}, "
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding!r}, "
            f"bias={self.bias is not None}, block={self.block}, output_size={self.output_size}"
        )


def _per_axis(name: str, value: Extent, axes: int, least: int) -> tuple[int, ...]:
    values = (value,) * axes if not isinstance(value, Sequence) else tuple(value)
    found = [number for v in values if (number := as_int(v)) is not None and number >= least]
    if not len(values) == len(found) == axes:
        numbers = "an integer" if axes == 1 else f"one or {axes} integers"
        raise GeometryError(f"{name} must be {numbers} of at least {least}, got {value!r}")
    return tuple(found)


def _windows(layer: _LocallyConnected) -> tuple[Window, ...]:
    if layer.padding == "same":
        axes = zip(layer.kernel_size, layer.stride, layer.input_size, strict=True)
        return tuple(Window.same_padding(size, step, extent=extent) for size, step, extent in axes)
    if isinstance(layer.padding, str) and layer.padding != "valid":
        raise GeometryError(f"padding must be integers, 'same' or 'valid', got {layer.padding!r}")
    sides = (0,) * layer.axes if isinstance(layer.padding, str) else layer.padding
    return tuple(Window(f, s, p, p) for f, s, p in zip(layer.kernel_size, layer.stride, sides, strict=True))


def _planes(layer: _LocallyConnected, windows: tuple[Window, ...]) -> tuple[_Plane, ...]:
    z, y, x = (Window(1),) * (3 - layer.axes) + windows
    depth, height, width = layer._volume(layer.input_size)
    behind, rows, columns = layer._volume(layer.block)
    if z.outputs(depth) < 1:
        raise GeometryError(
            f"a receptive field of depth {z.size} does not fit an input of depth {depth} "
            f"with padding {z.pad_before} and {z.pad_after}; use a smaller kernel or a larger input"
        )
    planes = []
    for index in range(z.outputs(depth)):
        (start, stop), (before, after) = z.reads(index, depth), z.padding_read(index, depth)
        below = MapShape(layer.in_channels * (stop - start), height, width)
        block = BlockLocal(below, y, x, rows, columns, behind * layer.out_channels)
        planes.append(_Plane((start, stop), (before, z.size - after), block))
    return tuple(planes)


class LocallyConnected1d(_LocallyConnected):
    """A locally connected layer over sequences: a convolution with separate filters at every position.

    ``weight`` is ``(block_x, field_x * channel, neuron)``, ``bias`` is ``(block_x, neuron)``. The neurons of
    a block are ordered [position in block][out channel]. ``output_size`` is grid * block.

    Args:
        in_channels: Channels of the input ``(image, in_channels, x)``.
        out_channels: Channels of the output.
        input_size: Length of the input.
        kernel_size: Length of the receptive field.
        stride: Distance of neighbouring receptive fields.
        padding: Zeros on either side, ``"same"`` or ``"valid"``.
        bias: Add a learned bias to every output.
        block: Number of adjacent outputs that share one receptive field.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        GeometryError: A value out of range, or a receptive field larger than the padded input.

    >>> LocallyConnected1d(4, 8, input_size=100, kernel_size=5)(torch.rand(2, 4, 100)).shape
    torch.Size([2, 8, 96])
    """

    axes = 1


class LocallyConnected2d(_LocallyConnected):
    """A locally connected layer over maps: a convolution with separate filters at every position.

    ``weight`` is ``(block_y, block_x, field_y, field_x * channel, neuron)``, ``bias`` is ``(block_y, block_x,
    neuron)``. The neurons of a block are ordered [row in block][column in block][out channel].
    ``output_size`` is grid * block: a larger block adds outputs to each receptive field and leaves the grid
    of fields as it is.

    Args:
        in_channels: Channels of the input ``(image, in_channels, y, x)``.
        out_channels: Channels of the output.
        input_size: Height and width of the input, or one extent for both.
        kernel_size: Height and width of the receptive field.
        stride: Distance of neighbouring receptive fields along y and x.
        padding: Zeros on either side along y and x, ``"same"`` or ``"valid"``.
        bias: Add a learned bias to every output.
        block: Rows and columns of adjacent outputs that share one receptive field.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        GeometryError: A value out of range, or a receptive field larger than the padded input.

    Source:
        Coates et al. 2013, figure 2.

    >>> LocallyConnected2d(3, 8, input_size=32, kernel_size=5)(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 8, 28, 28])
    >>> LocallyConnected2d(3, 8, 32, 8, stride=4, block=(4, 4))(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 8, 28, 28])
    """

    axes = 2

    @property
    def geometry(self) -> BlockLocal:
        """Block-local geometry of the layer: input map, windows, blocks and output map."""
        return self._planes[0].layer


class LocallyConnected3d(_LocallyConnected):
    """A locally connected layer over volumes: a convolution with separate filters at every position.

    ``weight`` is ``(block_z, block_y, block_x, field_y, field_x * field_z * channel, neuron)``, ``bias`` is
    ``(block_z, block_y, block_x, neuron)``. The neurons of a block are ordered [row in block][column in
    block][plane in block][out channel]. ``output_size`` is grid * block. Each plane of blocks is computed as
    one product.

    Args:
        in_channels: Channels of the input ``(image, in_channels, z, y, x)``.
        out_channels: Channels of the output.
        input_size: Depth, height and width of the input, or one extent for all.
        kernel_size: Depth, height and width of the receptive field.
        stride: Distance of neighbouring receptive fields along z, y and x.
        padding: Zeros on either side along z, y and x, ``"same"`` or ``"valid"``.
        bias: Add a learned bias to every output.
        block: Planes, rows and columns of adjacent outputs that share one receptive field.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        GeometryError: A value out of range, or a receptive field larger than the padded input.

    >>> LocallyConnected3d(1, 4, input_size=(6, 8, 8), kernel_size=3)(torch.rand(2, 1, 6, 8, 8)).shape
    torch.Size([2, 4, 4, 6, 6])
    """

    axes = 3
