"""Fully connected layers over ranks, by columns and by rows in turn.

Knows: which part of its matrix a rank has, when outputs are summed. Does not know: how parts are gathered.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from cotswold.errors import UserError
from cotswold.mesh.maps.features import DistributedFeatures, whole_of
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.modules.parameters import local_of
from cotswold.mesh.ranks.collectives import all_reduce_backward, all_reduce_forward
from cotswold.mesh.ranks.mesh import Mesh


class SplitLinear(nn.Module):
    """A fully connected layer of which each rank has some outputs (``columns``) or some inputs (``rows``).

    By columns it takes whole values and gives parts; by rows it takes parts and gives the whole, by one sum
    over ranks. ``weight`` is ``(output, input)`` as torch.nn.Linear's, whose matrix W' they are columns and
    rows of.
    """

    hides_parts = True
    weight: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, mesh: Mesh, way: Literal["columns", "rows"]) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.way, self.mesh = way, mesh

    def forward(self, x: Any) -> Any:
        """Outputs ``(..., output)``; raises UserError for a map."""
        if isinstance(x, DistributedMap):
            raise UserError(
                f"Linear({self.in_features}, {self.out_features}) takes features, not a map "
                f"{tuple(x.shape)} that is cut over ranks; flatten it before"
            )
        if isinstance(x, DistributedFeatures):
            x.copies.check("Linear", x.called)
        if x.shape[-1] != self.in_features:
            raise UserError(
                f"Linear({self.in_features}, {self.out_features}) got inputs of {x.shape[-1]} features"
            )
        weight, bias = local_of(self.weight), None if self.bias is None else local_of(self.bias)
        if self.way == "columns":
            whole = all_reduce_backward(whole_of(x), self.mesh)
            return DistributedFeatures(F.linear(whole, weight, bias), self.out_features, self.mesh)
        if not isinstance(x, DistributedFeatures):
            x = DistributedFeatures(x, self.in_features, self.mesh)
            x.local = all_reduce_backward(x.local, self.mesh)[..., x.own]
        y = all_reduce_forward(F.linear(x.local, weight), self.mesh)
        return y if bias is None else y + bias.to(y.dtype)

    def extra_repr(self) -> str:
        """What the layer is, and how it is split."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, by {self.way}"
