"""A module whose parameters are views of one vector.

Knows: parameters, views. Does not know: what the module computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from cotswold.errors import UserError


class FlatParameters:
    """The trainable parameters of a module, as consecutive views of one vector.

    A write to ``vector`` sets the parameters, and a write to a parameter changes ``vector``.
    """

    def __init__(self, module: nn.Module) -> None:
        """Collect the trainable parameters.

        Raises UserError for parameters of several dtypes, or not on the CPU.
        """
        self.module = module
        found = [(name, each) for name, each in module.named_parameters() if each.requires_grad]
        kinds = {(each.dtype, each.device.type) for _, each in found}
        if len(kinds) != 1 or not all(kind == "cpu" and dtype.is_floating_point for dtype, kind in kinds):
            named = ", ".join(sorted(f"{dtype} on {kind}" for dtype, kind in kinds)) or "none"
            raise UserError(
                f"the trainable parameters of {type(module).__name__} are {named}; strategies batch and "
                "downpour keep them in one vector: give all of them one floating-point dtype on the CPU, "
                "or train with strategy supervised"
            )
        self.names = [name for name, _ in found]
        self._parameters = [each for _, each in found]
        self.vector = torch.cat([each.detach().reshape(-1) for each in self._parameters])
        self.rebind(self.vector)

    def rebind(self, vector: Tensor) -> None:
        """Move the parameters and their values into another vector ``(size,)``."""
        vector.copy_(self.vector)
        self.vector = vector
        for parameter, view in zip(self._parameters, self._cut(vector), strict=True):
            parameter.data = view

    def move_to(self, device: torch.device) -> None:
        """Move the module to a device, its parameters into a new vector there; the old vector stays
        unchanged.
        """
        self.rebind(torch.empty_like(self.vector, device=device))
        self.module.to(device)  # buffers, and frozen parameters

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the parameters, in their order."""
        return [tuple(each.shape) for each in self._parameters]

    def by_name(self, vector: Tensor) -> Mapping[str, Tensor]:
        """Return the parts of a vector by parameter name, each in the shape of its parameter."""
        return dict(zip(self.names, self._cut(vector), strict=True))

    def set_grad_views(self, gradient: Tensor | None) -> None:
        """Make autograd add the parameters' gradient to this vector, in place; None detaches the vector."""
        if gradient is None:
            for parameter in self._parameters:
                parameter.grad = None
            return
        for parameter, view in zip(self._parameters, self._cut(gradient), strict=True):
            parameter.grad = view

    def _cut(self, vector: Tensor) -> Iterator[Tensor]:
        start = 0
        for parameter in self._parameters:
            stop = start + parameter.numel()
            yield vector[start:stop].view(parameter.shape)
            start = stop
