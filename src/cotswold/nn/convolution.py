"""Convolutions as in torch.nn, computed by the library's kernels where they can be.

Knows: which settings of torch.nn.Conv2d the kernels compute. Does not know: the kernels.
"""

from __future__ import annotations

import copy

from torch import Tensor, nn

from cotswold import ops


class Conv2d(nn.Conv2d):
    """torch.nn.Conv2d, with the library's kernels for batches of at least 16 images on a CPU.

    Arguments, parameters and the state dict are those of torch.nn.Conv2d. Maps come out with the images last
    in memory, and layers that keep this order (those of `cotswold.nn`, activations, dropout) need no
    arrangement. Torch computes grouped and dilated convolutions, padding other than zeros, half precision,
    other devices, and everything that is compiled, exported or traced.

    >>> Conv2d(3, 8, 5, padding=2)(torch.rand(32, 3, 16, 16)).shape
    torch.Size([32, 8, 16, 16])
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        plain = self.groups == 1 and self.dilation == (1, 1) and self.padding_mode == "zeros"
        if plain and not isinstance(self.padding, str):
            return ops.conv2d(input, weight, bias, self.stride, self.padding)
        found: Tensor = super()._conv_forward(input, weight, bias)
        return found

    def __prepare_scriptable__(self) -> nn.Conv2d:
        """Return torch's module with the same parameters, which torch.jit.script compiles instead."""
        plain = copy.copy(self)
        plain.__class__ = nn.Conv2d  # type: ignore[assignment]  # mypy knows no change of class
        return plain


def convert_convolutions(module: nn.Module) -> nn.Module:
    """Let every torch.nn.Conv2d of a module use the library's kernels, and return the module.

    The modules stay the same objects with the same parameters, hooks and state dicts; only their class
    becomes `cotswold.nn.Conv2d`. Subclasses of torch.nn.Conv2d stay unchanged.

    Args:
        module: A module, or a convolution itself.

    >>> network = convert_convolutions(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()))
    >>> type(network[0]).__module__
    'cotswold.nn.convolution'
    """
    for part in module.modules():
        if type(part) is nn.Conv2d:
            part.__class__ = Conv2d
    return module
