"""A module whose parameters lie in one vector.

Knows: parameters, views. Does not know: what the module computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from cotswold.errors import UserError


class FlatModule:
    """The parameters of a module that learn, one after the other in a vector of which each is a view.

    Whoever writes into ``vector`` sets the parameters, and the other way round.
    """

    def __init__(self, module: nn.Module) -> None:
        """Raises UserError for parameters that cannot lie in one vector: of several types, or not on the
        CPU."""
        self.module = module
        found = [(name, each) for name, each in module.named_parameters() if each.requires_grad]
        kinds = {(each.dtype, each.device.type) for _, each in found}
        if len(kinds) != 1 or not all(kind == "cpu" and dtype.is_floating_point for dtype, kind in kinds):
            named = ", ".join(sorted(f"{dtype} on {kind}" for dtype, kind in kinds)) or "none"
            raise UserError(
                f"the parameters of {type(module).__name__} that learn are {named}; strategies batch and "
                "downpour keep them in one vector: give all the same floating type, on the CPU, or train by "
                "strategy supervised"
            )
        self.names = [name for name, _ in found]
        self._parameters = [each for _, each in found]
        self.vector = torch.cat([each.detach().reshape(-1) for each in self._parameters])
        self.lie_in(self.vector)

    def lie_in(self, vector: Tensor) -> None:
        """Have the parameters lie in another vector ``(size,)`` from now on, which gets their values."""
        vector.copy_(self.vector)
        self.vector = vector
        for parameter, view in zip(self._parameters, self._cut(vector), strict=True):
            parameter.data = view

    def move_to(self, device: torch.device) -> None:
        """Have the module on this device, its parameters in another vector there; what was the vector stays
        as it is."""
        self.lie_in(torch.empty_like(self.vector, device=device))
        self.module.to(device)  # buffers, and parameters that do not learn

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Those of the parameters, in their order."""
        return [tuple(each.shape) for each in self._parameters]

    def named(self, vector: Tensor) -> Mapping[str, Tensor]:
        """The parts of a vector as the parameters are shaped, by the parameters' names."""
        return dict(zip(self.names, self._cut(vector), strict=True))

    def collect(self, gradient: Tensor | None) -> None:
        """Have autograd add the gradient of the parameters to this vector, in place; None for nowhere."""
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
