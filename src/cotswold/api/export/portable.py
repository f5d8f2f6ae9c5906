"""Layers of Cotswold as layers of torch's operations, for programs that run without Cotswold.

Knows: the arithmetic of each layer. Does not know: file formats, runs.

Each layer here computes the same as its original in evaluation mode, up to rounding, on batches of maps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from cotswold.geometry import Smoothing, Window
from cotswold.nn import (
    L2Pool2d,
    LocalContrastNorm2d,
    LocallyConnected1d,
    LocallyConnected2d,
    LocallyConnected3d,
    MaxPool2d,
    SparseAutoencoderStack,
    StackNetwork,
)
from cotswold.nn.local import _windows
from cotswold.ops.contrast import FLOOR, gaussian_means
from cotswold.training import LayerNetwork

OWN = (
    L2Pool2d,
    LocalContrastNorm2d,
    LocallyConnected1d,
    LocallyConnected2d,
    LocallyConnected3d,
    MaxPool2d,
    SparseAutoencoderStack,
)
"""Layers that only Cotswold has."""


def own_layers(network: nn.Module) -> list[str]:
    """Return the layers of a network that only Cotswold has, as names with their classes."""
    return [
        f"{name or 'the network'} ({type(each).__name__})"
        for name, each in network.named_modules()
        if isinstance(each, OWN)
    ]


def portable(network: nn.Module, inputs: tuple[Tensor, ...]) -> nn.Module:
    """Return a copy of a network, in evaluation mode, whose layers are all torch's.

    Args:
        network: The network; it stays unchanged.
        inputs: Inputs, from which the layers learn the sizes of their maps.
    """
    network = as_sequential(copy.deepcopy(network).eval().requires_grad_(False))
    sizes: dict[str, torch.Size] = {}
    named = {name: each for name, each in network.named_modules() if isinstance(each, OWN)}
    if not named:
        return network
    hooks = [each.register_forward_pre_hook(_recorder(name, sizes)) for name, each in named.items()]
    with torch.no_grad():
        network(*inputs)
    for hook in hooks:
        hook.remove()
    for name, each in named.items():
        if name in sizes:
            made = _portable_layer(each, sizes[name])
            if not name:
                return made
            parent, _, last = name.rpartition(".")
            setattr(network.get_submodule(parent), last, made)
    return network


def _recorder(name: str, sizes: dict[str, torch.Size]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    """Return a hook that keeps the shape of a layer's input."""

    def hook(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        sizes[name] = arguments[0].shape

    return hook


def as_sequential(network: nn.Module) -> nn.Module:
    """Return the network of a recipe as `torch.nn.Sequential` of its layers; others as they are."""
    if isinstance(network, StackNetwork):
        return nn.Sequential(*network.stacks)
    if not isinstance(network, LayerNetwork):
        return network
    below = [] if network.below is None else [*network.below.stacks]
    return nn.Sequential(*below, *network.layers)


def _portable_layer(layer: nn.Module, size: torch.Size) -> nn.Module:
    match layer:
        case LocallyConnected1d() | LocallyConnected2d() | LocallyConnected3d():
            return PortableLocal.of(layer)
        case L2Pool2d():
            return PortablePool(layer.smoothing, layer.epsilon)
        case MaxPool2d():
            names = ("kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode")
            pool = nn.MaxPool2d(*(getattr(layer, name) for name in names))
            return pool if layer.activation == "identity" else nn.Sequential(pool, nn.ReLU())
        case LocalContrastNorm2d():
            return PortableContrast(layer.smoothing, layer.floor, (size[-2], size[-1]))
        case SparseAutoencoderStack():
            return _portable_stack(layer)
    raise AssertionError(f"not a layer of Cotswold: {layer!r}")


def _portable_stack(stack: SparseAutoencoderStack) -> nn.Sequential:
    geometry = stack.geometry
    filters, pooled = geometry.filters, geometry.pooled
    norms = torch.where(stack.norms > 0, stack.norms, 1)
    scale = (stack.alpha * stack.gain / norms)[:, :, None, None, :]
    weight = (stack.filters.detach() * scale).to(stack.filters.dtype)
    local = PortableLocal(
        weight.unsqueeze(0),
        None,
        windows=(Window(1), filters.y, filters.x),
        extents=(1, filters.y.size, filters.x.size),
        block=(1, filters.rows, filters.columns),
        channels=(filters.input.channels, filters.depth),
        axes=2,
    )
    layers: list[nn.Module] = [local, PortablePool(geometry.pool, stack.epsilon)]
    if geometry.norm.size > 1:
        layers.append(PortableContrast(geometry.norm, FLOOR, (pooled.height, pooled.width)))
    return nn.Sequential(*layers)


class PortableLocal(nn.Module):
    """A locally connected layer of one, two or three axes.

    Args:
        weight: ``(grid_z, grid_y, grid_x, field_y, field_x * field_z * channel, neuron)``.
        bias: ``(grid_z, grid_y, grid_x, neuron)``, or None.
        windows: Windows along z, y and x.
        extents: Sizes of a field along z, y and x.
        block: Outputs of a block along z, y and x.
        channels: Input and output channels.
        axes: Number of the axes of a map, 1 to 3.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        windows: Sequence[Window],
        extents: Sequence[int],
        block: Sequence[int],
        channels: tuple[int, int],
        axes: int,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
        self._windows, self._extents, self._block = tuple(windows), tuple(extents), tuple(block)
        self._channels, self._axes = channels, axes

    @classmethod
    def of(cls, layer: LocallyConnected1d | LocallyConnected2d | LocallyConnected3d) -> PortableLocal:
        """Return the equivalent of a layer."""
        bias = layer.bias
        weight = layer.weight.reshape(layer._full)
        return cls(
            weight,
            None if bias is None else bias.reshape(*weight.shape[:3], weight.shape[-1]),
            windows=(Window(1),) * (3 - layer.axes) + _windows(layer),
            extents=layer._volume(layer.kernel_size),
            block=layer._volume(layer.block),
            channels=(layer.in_channels, layer.out_channels),
            axes=layer.axes,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return responses ``(image, channel, *output_size)`` to a batch of maps."""
        grid, (inputs, outputs) = self.weight.shape[:3], self._channels
        x = x.reshape(x.shape[0], inputs, *(1,) * (3 - self._axes), *x.shape[2:])
        pads = [pad for window in reversed(self._windows) for pad in (window.pad_before, window.pad_after)]
        x = functional.pad(x, pads)
        for axis, (window, count) in enumerate(zip(self._windows, grid, strict=True), 2):
            x = x.unfold(axis, window.size, window.stride).narrow(axis, 0, count)
        # image, channel, grid z y x, field z y x -> grid z y x, image, field y x z, channel
        fields = x.permute(2, 3, 4, 0, 6, 7, 5, 1).flatten(4)
        found = fields @ self.weight.flatten(3, 4)
        if self.bias is not None:
            found = found + self.bias.unsqueeze(3)
        z, y, x_ = self._block
        found = found.reshape(*grid, -1, y, x_, z, outputs).permute(3, 7, 0, 6, 1, 4, 2, 5)
        sizes = [count * each for count, each in zip(grid, self._block, strict=True)][3 - self._axes :]
        return found.reshape(-1, outputs, *sizes)


class PortablePool(nn.Module):
    """L2 pooling at stride 1."""

    def __init__(self, smoothing: Smoothing, epsilon: float) -> None:
        super().__init__()
        self._size, self._epsilon = smoothing.size, epsilon
        self._pads = _pads(smoothing)

    def forward(self, x: Tensor) -> Tensor:
        """Return the pooled maps."""
        squares = functional.pad(x * x, self._pads)
        sums = functional.avg_pool2d(squares, self._size, stride=1) * float(self._size**2)
        return torch.sqrt(sums + self._epsilon)


class PortableContrast(nn.Module):
    """Local contrast normalisation of maps of one size."""

    means: Sequence[Tensor]

    def __init__(self, smoothing: Smoothing, floor: float, size: tuple[int, int]) -> None:
        super().__init__()
        self._smoothing, self._floor = smoothing, floor
        shrunk = 0 if smoothing.keep else smoothing.size - 1
        like = torch.empty(0, dtype=torch.float32)
        for step, extents in enumerate((size, tuple(extent - shrunk for extent in size))):
            for axis, extent in zip("yx", extents, strict=True):
                self.register_buffer(f"mean_{step}_{axis}", gaussian_means(extent, smoothing, like))

    def forward(self, h: Tensor) -> Tensor:
        """Return the normalised maps."""
        centred = self._crop(h) - self._smooth(h.mean(1, keepdim=True), 0)
        power = self._smooth((centred * centred).mean(1, keepdim=True), 1)
        return self._crop(centred) / power.clamp_min(self._floor**2).sqrt()

    def _smooth(self, x: Tensor, step: int) -> Tensor:
        y, x_ = self.get_buffer(f"mean_{step}_y"), self.get_buffer(f"mean_{step}_x")
        return y.to(x.dtype) @ x @ x_.to(x.dtype).transpose(0, 1)

    def _crop(self, x: Tensor) -> Tensor:
        if self._smoothing.keep:
            return x
        before = Window.same_padding(self._smoothing.size).pad_before
        shrunk = self._smoothing.size - 1
        return x[:, :, before : x.shape[2] - (shrunk - before), before : x.shape[3] - (shrunk - before)]


def _pads(smoothing: Smoothing) -> list[int]:
    """Return the zeros left, right, above and below a map."""
    window = smoothing.window
    return [window.pad_before, window.pad_after] * 2
