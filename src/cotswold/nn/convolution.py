"""Layers of convolutional networks as in torch.nn, computed by the library's kernels where they can be.

Knows: which settings of torch's layers the kernels compute, the order of maps. Does not know: the kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cotswold import ops
from cotswold.errors import UserError
from cotswold.nn.dropout import Dropout
from cotswold.nn.layer_base import as_torch, traced_as_leaf
from cotswold.nn.linear import Flatten, Linear
from cotswold.nn.max_pooling import MaxPool2d


class Conv2d(nn.Conv2d):
    """torch.nn.Conv2d, with the library's kernels for batches of at least 16 images on a CPU.

    Arguments, parameters and the state dict are those of torch.nn.Conv2d. Maps come out with the images last
    in memory, and layers that keep this order (those of `cotswold.nn`, activations, dropout) need no
    arrangement. Torch computes grouped and dilated convolutions, padding other than zeros, half precision,
    other devices, and everything that is compiled, exported or traced.

    Args:
        in_channels: Channels of the input ``(image, in_channels, y, x)``.
        out_channels: Channels of the output.
        kernel_size: Height and width of the filters, or one extent for both.
        stride: Distance of neighbouring fields along y and x.
        padding: Zeros on either side along y and x, ``"same"`` or ``"valid"``.
        dilation: Distance of neighbouring places of a field.
        groups: Number of groups of channels that do not mix.
        bias: Add a learned bias to every output channel.
        padding_mode: ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    >>> Conv2d(3, 8, 5, padding=2)(torch.rand(32, 3, 16, 16)).shape
    torch.Size([32, 8, 16, 16])
    """

    @traced_as_leaf
    def forward(self, input: Tensor) -> Tensor:
        """Return maps ``(image, out_channels, y, x)``.

        Args:
            input: Maps ``(image, in_channels, y, x)`` or one map ``(in_channels, y, x)``.
        """
        return super().forward(input)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        plain = self.groups == 1 and self.dilation == (1, 1) and self.padding_mode == "zeros"
        if plain and not isinstance(self.padding, str):
            return ops.conv2d(input, weight, bias, self.stride, self.padding)
        found: Tensor = super()._conv_forward(input, weight, bias)
        return found

    def __prepare_scriptable__(self) -> nn.Module:
        return as_torch(self, nn.Conv2d)


class BatchNorm2d(nn.BatchNorm2d):
    """torch.nn.BatchNorm2d for maps of any memory order; the images of a result are last if they were.

    Arguments, parameters and the state dict are those of torch.nn.BatchNorm2d, which takes five times as long
    for maps with the images last.

    Args:
        num_features: Channels of the input ``(image, num_features, y, x)``.
        eps: Number added to the variance.
        momentum: Weight of a batch in the running statistics; None for their plain mean.
        affine: Learn a scale and a bias for each channel.
        track_running_stats: Keep running statistics, for evaluation.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    >>> BatchNorm2d(3)(torch.rand(32, 3, 8, 8)).shape
    torch.Size([32, 3, 8, 8])
    """

    @traced_as_leaf
    def forward(self, input: Tensor) -> Tensor:
        """Return normalised maps.

        Args:
            input: Maps ``(image, channel, y, x)``.
        """
        if type(input) is not Tensor or input.dim() != 4 or not _has_images_last(input):
            return super().forward(input)
        planes = input.permute(2, 3, 1, 0)  # a contiguous batch of positions
        found = super().forward(planes.reshape(-1, *planes.shape[2:], 1))
        maps = found.view(planes.shape).permute(3, 2, 0, 1)
        # for autograd no view: changes in place would cost a copy of the whole map in backward
        return torch.ops.aten._unsafe_view(maps, maps.shape)  # type: ignore[no-any-return]  # of torch.ops

    def __prepare_scriptable__(self) -> nn.Module:
        return as_torch(self, nn.BatchNorm2d)


def _has_images_last(x: Tensor) -> bool:
    """True if torch's kernels can read a map as a contiguous ``(y, x, channel, image)``, but not as it is."""
    return (
        not x.is_contiguous() and x.permute(2, 3, 1, 0).is_contiguous() and not torch.compiler.is_compiling()
    )


def convert_layers(module: nn.Module) -> nn.Module:
    """Let a module's convolutions, fully connected layers, and layers around them, use the library's kernels.

    Every torch.nn.Conv2d, MaxPool2d, BatchNorm2d, Dropout, Flatten and Linear becomes the layer of the same
    name in `cotswold.nn`. The modules stay the same objects, with the same parameters, hooks and state
    dicts; only their class changes. Subclasses of torch's classes stay unchanged. Maps then have the images
    last in memory; before an operation that needs torch's order, such as ``view``, use
    `cotswold.ops.images_first`.

    Args:
        module: A module, or one of these layers itself.

    Returns:
        The same module.

    Raises:
        UserError: If ``module`` is no module.

    >>> network = convert_layers(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()))
    >>> type(network[0]).__module__
    'cotswold.nn.convolution'
    """
    if not isinstance(module, nn.Module):
        raise UserError(f"convert_layers takes a torch.nn.Module, got {type(module).__name__}")
    for part in module.modules():
        if type(part) is nn.MaxPool2d:
            vars(part)["activation"] = "identity"
        found = _CONVERTED.get(type(part))
        if found is not None:
            part.__class__ = found
    return module


_CONVERTED: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm2d: BatchNorm2d,
    nn.Conv2d: Conv2d,
    nn.Dropout: Dropout,
    nn.Flatten: Flatten,
    nn.Linear: Linear,
    nn.MaxPool2d: MaxPool2d,
}
