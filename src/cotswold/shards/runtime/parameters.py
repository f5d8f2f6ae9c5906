"""The parameters of a work, as whoever computes it shares them.

Knows: what a work must give. Does not know: what is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.shards.runtime.work import Slot

Layout = tuple[tuple[str, int, int], ...]
"""Of each tensor: name, rows, columns."""


class Parametrised(Protocol):
    """What has parameters in one vector."""

    @property
    def parameters(self) -> Tensor:
        """The vector."""
        ...

    @property
    def layout(self) -> Sequence[Slot]:
        """The tensors in it."""
        ...


def parameters_of(work: Parametrised) -> tuple[Tensor, Layout]:
    """The live parameters, and what lies in them; raises UserError where they are no vector of that."""
    parameters = work.parameters
    if parameters.dim() != 1 or parameters.dtype not in (torch.float32, torch.float64):
        raise UserError(
            f"the work's parameters are {tuple(parameters.shape)} of {parameters.dtype}; they must lie "
            "in one vector of float32 or float64"
        )
    layout = tuple((slot.name, slot.rows, slot.columns) for slot in work.layout)
    if sum(rows * columns for _, rows, columns in layout) != parameters.numel():
        raise UserError(
            f"the work's layout has {sum(rows * columns for _, rows, columns in layout)} numbers, "
            f"and its parameters {parameters.numel()}; name each tensor once, in their order"
        )
    return parameters.detach(), layout


def products_of(work: Parametrised) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """What makes gradients of factors for tensors that are no matrices, by their names: where each begins in
    the vector, and its slot's own numbers."""
    found, start = [], 0
    for slot in work.layout:
        if slot.product:
            found.append((slot.name, (start, *slot.product)))
        start += slot.rows * slot.columns
    return tuple(found)
