"""Fully connected layers as in torch.nn, computed by the library's kernels where they can be.

Knows: torch's layers and their arguments. Does not know: the kernels, which products they compute.
"""

from __future__ import annotations

from torch import Tensor, nn

from cotswold.nn.layer_base import as_torch, traced_as_leaf
from cotswold.ops.layers import fully_connected


class Linear(nn.Linear):
    """torch.nn.Linear, with the library's kernels for large products of at least 16 samples on a CPU.

    Arguments, parameters and the state dict are those of torch.nn.Linear. The kernels' results have the
    samples last in memory, and layers that keep this order need no arrangement. Torch computes products of
    fewer than 8 million multiplications, inputs that are not matrices, half precision, other devices, and
    everything that is compiled, exported or traced.

    Args:
        in_features: Inputs of a sample ``(sample, in_features)``.
        out_features: Outputs of a sample.
        bias: Add a learned bias to every output.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    >>> import torch
    >>> Linear(400, 400)(torch.rand(64, 400)).shape
    torch.Size([64, 400])
    """

    @traced_as_leaf
    def forward(self, input: Tensor) -> Tensor:
        """Return ``(sample, out_features)``.

        Args:
            input: Samples ``(sample, in_features)``, or any shape ``(..., in_features)``.
        """
        return fully_connected.linear(input, self.weight, self.bias)

    def __prepare_scriptable__(self) -> nn.Module:
        return as_torch(self, nn.Linear)


class Flatten(nn.Flatten):
    """torch.nn.Flatten; samples stay last in memory if a map's images are, as `Linear` reads them.

    Args:
        start_dim: First dimension to flatten.
        end_dim: Last dimension to flatten.

    >>> import torch
    >>> Flatten()(torch.rand(2, 3, 8, 8)).shape
    torch.Size([2, 192])
    """

    @traced_as_leaf
    def forward(self, input: Tensor) -> Tensor:
        """Return the input with these dimensions as one.

        Args:
            input: Any shape.
        """
        if self.start_dim == 1 and self.end_dim in (-1, 3) and input.dim() == 4:
            return fully_connected.flatten(input)
        return super().forward(input)

    def __prepare_scriptable__(self) -> nn.Module:
        return as_torch(self, nn.Flatten)
