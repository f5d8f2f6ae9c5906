"""Distributed arrays: views and results of maps in other shapes, of which each rank holds a part.

Knows: parts, layouts, gathering, how torch's functions reach the rules. Does not know: rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor

from cotswold.errors import GeometryError
from cotswold.mesh.maps.distributed_tensor import (
    AliasGuard,
    DistributedTensor,
    register_part_hook,
)
from cotswold.mesh.maps.layout import Layout, Tokens
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.ranks.collectives import all_gather, all_reduce_backward
from cotswold.mesh.ranks.mesh import Mesh
from cotswold.mesh.rules import registry


class DistributedArray(DistributedTensor):
    """An array of any shape whose pixels are divided over ranks; torch's functions accept it.

    Examples are a channels-last view of a map, the windows or tokens of a transformer, and the classes of all
    pixels. Functions that leave the divided dimensions alone compute on every rank's part; others gather the
    whole on every rank, and a warning names the layer once.

    Args:
        local: This rank's part, an ordinary tensor of autograd.
        layout: Dimensions of the whole, and how they are divided.
        mesh: The ranks.

    Raises:
        GeometryError: ``local`` does not have the shape of this rank's part.
    """

    called = "a distributed array"

    def __new__(cls, local: Tensor, layout: Layout, mesh: Mesh) -> Self:
        """Create a tensor with the shape of the whole."""
        return cls.without_memory(layout.shape, local)

    def __init__(self, local: Tensor, layout: Layout, mesh: Mesh) -> None:
        if tuple(local.shape) != layout.local_shape(mesh.rank):
            raise GeometryError(
                f"rank {mesh.rank} needs a part {layout.local_shape(mesh.rank)} of an array {layout.shape}, "
                f"got {tuple(local.shape)}"
            )
        self.local, self.axes, self.mesh, self.copies = local, layout, mesh, AliasGuard()

    is_copy = False
    """True if changes in place would not reach the map of which this is a view."""

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]  # these are attributes in torch's stubs
        """Shape of the whole."""
        return torch.Size(self.axes.shape)

    def _part(self) -> Tensor:
        """This rank's values, without a message."""
        return self.local

    def register_hook(self, hook: Callable[[Any], Any]) -> Any:
        """Register a function of the gradient.

        Args:
            hook: Called with the gradient, a distributed array like this one; may return another.

        Returns:
            A handle that removes the hook.
        """
        return register_part_hook(self.local, hook, lambda grad: DistributedArray(grad, self.axes, self.mesh))

    def full_tensor(self) -> Tensor:
        """Gather the whole on every rank, as an ordinary tensor; differentiable."""
        self.check_gradient()
        grid, factors = self.axes.grid, self.axes.factors
        parts = [[one.part(grid, rank) for one in factors] for rank in range(grid.size)]
        starts = {at: [0, *accumulate(len(part[at]) for part in parts)] for at in range(len(factors))}

        def place(rank: int, at: int) -> slice:
            part = parts[rank][at]
            if isinstance(factors[at], Tokens):  # in the order of the ranks
                return slice(starts[at][rank], starts[at][rank + 1])
            return slice(part[0], part[-1] + 1) if part else slice(0, 0)

        places = [tuple(place(rank, at) for at in range(len(factors))) for rank in range(grid.size)]
        own = self.local.reshape([len(part) for part in parts[self.mesh.rank]])
        whole = all_gather(own, self.mesh, [one.extent for one in factors], places)
        for at, factor in enumerate(factors):
            if isinstance(factor, Tokens) and grid.size > 1:
                order = torch.tensor([one for part in parts for one in part[at]])
                whole = whole.index_select(at, order.argsort().to(whole.device))
        return whole.reshape(self.shape)

    def saved(self) -> DistributedArray:
        """Return a copy that shares the values and needs gradients alike, without their history."""
        local = self.local.detach().requires_grad_(self.local.requires_grad)
        return DistributedArray(local, self.axes, self.mesh)

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Handle a torch function that has an array among its arguments."""
        return registry.apply_to_arrays(function, args, dict(kwargs or {}))

    def __repr__(self) -> str:  # type: ignore[override]  # torch's takes contents
        return f"DistributedArray({tuple(self.shape)}, {self.dtype} on {self.mesh})"


def array_of(x: DistributedMap | DistributedArray) -> DistributedArray:
    """Return a map as an array, a view of it."""
    if isinstance(x, DistributedArray):
        return x
    layout = Layout.of_map(x.shape[0], x.shape[1], x.partition)
    out = DistributedArray(x.local, layout, x.mesh)
    out.copies, out.is_copy = x.copies, x.halo_boxes is not None
    return out


def arranged(local: Tensor, layout: Layout, mesh: Mesh) -> Any:
    """Return the array of this rank's part; a `DistributedMap` if it is ``(image, channel, y, x)``."""
    if layout.is_map:
        assert layout.plane is not None
        return DistributedMap(local, layout.plane, mesh)
    return DistributedArray(local, layout, mesh)


def own_part(whole: Tensor, layout: Layout, mesh: Mesh) -> Tensor:
    """Return this rank's part of a replicated operand of an array.

    Dimensions are compared from the last one; those of extent 1, and those that are not divided, stay whole.
    """
    whole = all_reduce_backward(whole, mesh)
    for back, dim in enumerate(reversed(layout.dims), 1):
        at = whole.dim() - back
        if at < 0:
            break
        if whole.shape[at] == 1 and layout.shape[-back] != 1:
            continue
        cut = [one for one in dim if one.is_cut]
        if not cut:
            continue
        apart = whole.unflatten(at, [one.extent for one in dim])  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for offset, factor in enumerate(dim):
            part = factor.part(layout.grid, mesh.rank)
            if isinstance(factor, Tokens):
                apart = apart.index_select(
                    at + offset, torch.tensor(part, dtype=torch.int64, device=whole.device)
                )
            elif factor.is_cut:
                apart = apart.narrow(at + offset, part[0] if part else 0, len(part))
        whole = apart.flatten(at, at + len(dim) - 1)
    return whole
