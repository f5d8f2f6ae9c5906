"""Tensor-parallel fully connected layers, alternately split by columns and by rows.

Knows: which part of its matrix a rank has, when outputs are summed. Does not know: how parts are gathered.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from cotswold.errors import UserError
from cotswold.mesh.maps.array import DistributedArray
from cotswold.mesh.maps.features import DistributedFeatures, full_tensor_of
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.modules.parameters import local_of, two_level_chunk_bounds
from cotswold.mesh.ranks.collectives import all_gather, all_reduce_backward, all_reduce_forward
from cotswold.mesh.ranks.mesh import Mesh


class SplitLinear(nn.Module):
    """A fully connected layer of which each rank has some outputs (``columns``) or some inputs (``rows``).

    Split by columns it takes replicated values and returns distributed features; split by rows it takes
    distributed features and returns replicated values, by one all-reduce. ``weight`` is ``(output, input)``
    as in torch.nn.Linear; columns and rows refer to its transpose.
    """

    hides_parts = True
    weight: Tensor
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, mesh: Mesh, way: Literal["columns", "rows"]) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.way, self.mesh = way, mesh

    def forward(self, x: Any) -> Any:
        """Return the outputs ``(..., output)``; raises UserError for a map."""
        if isinstance(x, DistributedMap):
            raise UserError(
                f"Linear({self.in_features}, {self.out_features}) takes features, not a distributed map "
                f"{tuple(x.shape)}; flatten it first"
            )
        if isinstance(x, DistributedArray):  # whose pixels are divided, so that each rank needs the matrix
            return F.linear(x, self.weight, self.bias)
        if isinstance(x, DistributedFeatures):
            x.copies.check("Linear", x.called)
        if x.shape[-1] != self.in_features:
            raise UserError(
                f"Linear({self.in_features}, {self.out_features}) needs inputs with in_features features, "
                f"got {x.shape[-1]}"
            )
        weight, bias = local_of(self.weight), None if self.bias is None else local_of(self.bias)
        if self.way == "columns":
            whole = all_reduce_backward(full_tensor_of(x), self.mesh)
            return DistributedFeatures(F.linear(whole, weight, bias), self.out_features, self.mesh)
        if not isinstance(x, DistributedFeatures):
            x = DistributedFeatures(x, self.in_features, self.mesh)
            x.local = all_reduce_backward(x.local, self.mesh)[..., x.local_slice]
        y = all_reduce_forward(F.linear(x.local, weight), self.mesh)
        return y if bias is None else y + bias.to(y.dtype)

    def gathered(self, name: str, part: Tensor) -> Tensor:
        """Return a sharded parameter on every rank; differentiable.

        Args:
            name: Name of the parameter.
            part: This rank's part.
        """
        extent = self.out_features if self.way == "columns" else self.in_features
        cuts = pairwise(two_level_chunk_bounds(extent, self.mesh.grid))
        ahead = () if self.way == "columns" else (slice(None),)
        behind = (slice(None),) if self.way == "columns" and name == "weight" else ()
        places = [(*ahead, slice(first, stop), *behind) for first, stop in cuts]
        shape = (self.out_features, self.in_features)[: part.dim()]
        return all_gather(part, self.mesh, shape, places)

    def extra_repr(self) -> str:
        """Describe the layer and its split."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, by {self.way}"
