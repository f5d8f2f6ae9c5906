"""The parameters of a work, with their layout.

Knows: the requirements on a work. Does not know: the computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.shards.runtime.work import TensorSlot

Layout = tuple[tuple[str, int, int], ...]
"""(name, rows, columns) of each tensor."""


class HasParameters(Protocol):
    """An object with parameters in one vector."""

    @property
    def parameters(self) -> Tensor:
        """The vector, flat ``(size,)``."""
        ...

    @property
    def layout(self) -> Sequence[TensorSlot]:
        """The tensors in the vector, in order."""
        ...


def parameters_of(work: HasParameters) -> tuple[Tensor, Layout]:
    """Return the live parameters and their layout; raise UserError if they are not a vector of that
    layout."""
    parameters = work.parameters
    if parameters.dim() != 1 or parameters.dtype not in (torch.float32, torch.float64):
        raise UserError(
            "the work's parameters must be one vector of float32 or float64, got shape "
            f"{tuple(parameters.shape)} of {parameters.dtype}"
        )
    layout = tuple((slot.name, slot.rows, slot.columns) for slot in work.layout)
    if sum(rows * columns for _, rows, columns in layout) != parameters.numel():
        raise UserError(
            f"the work's layout has {sum(rows * columns for _, rows, columns in layout)} numbers, "
            f"but its parameters have {parameters.numel()}; list each tensor once, in order"
        )
    return parameters.detach(), layout


def products_of(work: HasParameters) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return, for each tensor that is not a matrix, the description of the product that turns factors into
    its gradient: its position in the vector, then its slot's numbers."""
    found, start = [], 0
    for slot in work.layout:
        if slot.product:
            found.append((slot.name, (start, *slot.product)))
        start += slot.rows * slot.columns
    return tuple(found)
