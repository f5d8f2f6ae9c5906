"""The numerical check of an exported program.

Knows: outputs of the network and of the program. Does not know: file formats.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from cotswold.api.export.subject import Inputs
from cotswold.errors import ExportError

_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
_OTHER_TOLERANCE = 2e-2
"""For float16 and bfloat16."""


def largest_difference(
    network: nn.Module, program: Callable[[Inputs], object], inputs: Inputs, *, is_dynamic: bool
) -> float:
    """Return the largest difference of outputs, relative to the largest output; raises ExportError if it is
    more than rounding.

    A program with a dynamic batch is also run on a batch of another size.
    """
    found = 0.0
    for given in (inputs, larger(inputs)) if is_dynamic else (inputs,):
        with torch.no_grad():
            expected, got = tensors_of(network(*given)), tensors_of(program(given))
        if [each.shape for each in expected] != [each.shape for each in got]:
            raise ExportError(
                f"the exported program gives outputs of {[tuple(each.shape) for each in got]}, "
                f"the network of {[tuple(each.shape) for each in expected]}; please report this"
            )
        for one, other in zip(expected, got, strict=True):
            found = max(found, _difference(one, other))
    return found


def larger(inputs: Inputs) -> Inputs:
    """Return inputs with a sample more."""
    return tuple(torch.cat([each, each[:1]]) for each in inputs)


def tensors_of(outputs: object) -> list[Tensor]:
    """Return the tensors of an output: a tensor, or any nesting of them."""
    return [each for each in pytree.tree_leaves(outputs) if isinstance(each, Tensor)]


def _difference(expected: Tensor, got: Tensor) -> float:
    if not expected.numel():
        return 0.0
    one, other = expected.double(), got.double()
    if not torch.equal(one.isnan(), other.isnan()):
        raise ExportError("the exported program gives NaN where the network does not; please report this")
    one, other = one.nan_to_num(), other.nan_to_num()
    found = float((one - other).abs().max() / one.abs().max().clamp_min(1.0))
    bound = _TOLERANCES.get(expected.dtype, _OTHER_TOLERANCE)
    if not found <= bound:
        raise ExportError(
            f"the exported program differs from the network by {found:.2g} of its largest output, more than "
            f"{bound:g}; a module that draws random numbers or changes its state cannot be exported"
        )
    return found
