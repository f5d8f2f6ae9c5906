"""Distributed maps: each rank holds a part of every channel's plane.

Knows: parts, their boundaries, how torch's functions reach the rules for maps. Does not know: rules,
messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import torch
from torch import Tensor

from cotswold.errors import GeometryError, UserError
from cotswold.geometry import Box, Partition
from cotswold.mesh.maps.crop import crop
from cotswold.mesh.maps.distributed_tensor import (
    AliasGuard,
    DistributedTensor,
    register_part_hook,
    shares_memory,
)
from cotswold.mesh.ranks.collectives import all_gather, all_reduce_backward, connected_zeros
from cotswold.mesh.ranks.mesh import Mesh
from cotswold.mesh.rules import registry


class DistributedMap(DistributedTensor):
    """A map ``(image, channel, y, x)`` of which each rank holds a part; torch's functions accept it.

    Pointwise operations need no message. Windows fetch their halo from other ranks. Sums over space are
    replicated on every rank. All ranks must apply the same operations to the same maps in the same order.

    Args:
        local: This rank's part ``(image, channel, y, x)``, an ordinary tensor of autograd.
        partition: Boundaries of the parts in the plane.
        mesh: The ranks.

    Raises:
        GeometryError: ``local`` does not have the shape of this rank's part, or the grids differ.
    """

    called = "a distributed map"

    def __new__(cls, local: Tensor, partition: Partition, mesh: Mesh) -> Self:
        """Create a tensor with the shape of the whole map."""
        return cls.without_memory((*local.shape[:2], *partition.shape), local)

    def __init__(self, local: Tensor, partition: Partition, mesh: Mesh) -> None:
        own = partition.box(mesh.rank)
        if partition.grid != mesh.grid or local.dim() != 4 or tuple(local.shape[2:]) != own.shape:
            raise GeometryError(
                f"rank {mesh.rank} needs a part (image, channel, {own.shape[0]}, {own.shape[1]}) of a map, "
                f"got {tuple(local.shape)}"
            )
        self._local: Tensor | None = local
        self.partition, self.mesh = partition, mesh
        self.source, self.copies = local, AliasGuard()
        self.halo_boxes: tuple[Box, ...] | None = None
        """Boxes that each rank has in its ``source``, if they exceed its part: its halo is local."""

    _whole: Tensor | None = None
    passing = False
    """True if the replicated source is no longer needed, so that windows are copied out of it."""

    @classmethod
    def of(cls, whole: Tensor, mesh: Mesh, partition: Partition | None = None) -> DistributedMap:
        """Distribute a replicated tensor, without a message.

        Args:
            whole: The map ``(image, channel, y, x)``, equal on every rank.
            mesh: The ranks.
            partition: Boundaries of the parts (default: equal parts).
        """
        if isinstance(whole, DistributedTensor):
            whole = whole.full_tensor()
        height, width = whole.shape[2:]
        partition = partition or Partition.even((height, width), mesh.grid)
        reach = (Box.whole((height, width)),) * mesh.size
        out = local_map(all_reduce_backward(whole, mesh), mesh, partition, reach)
        out._whole = whole
        return out

    @property
    def local(self) -> Tensor:
        """This rank's part of the map ``(image, channel, y, x)``."""
        if self._local is None:
            assert self.halo_boxes is not None
            self._local = crop_or_zeros(self.source, self.box, self.halo_boxes[self.mesh.rank])
        return self._local

    @property
    def box(self) -> Box:
        """Box (y, x) of this rank's part in the plane."""
        return self.partition.box(self.mesh.rank)

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]  # these are attributes in torch's stubs
        """Shape of the whole map."""
        return torch.Size((*self.source.shape[:2], *self.partition.shape))

    def _part(self) -> Tensor:
        """This rank's values, without a message."""
        return self.source

    def register_hook(self, hook: Callable[[Any], Any]) -> Any:
        """Register a function of the gradient.

        Args:
            hook: Called with the gradient, a distributed map like this one; may return another.

        Returns:
            A handle that removes the hook.

        Raises:
            UserError: The map is a batch from outside, of which no rank has the gradient.
        """
        if self.halo_boxes is not None:
            raise UserError(
                "register_hook cannot be used on a batch from outside: no rank has its gradient before the "
                "backward pass ends; register it on the batch itself, or on the output of a layer"
            )
        return register_part_hook(self.source, hook, self.like)

    def full_tensor(self) -> Tensor:
        """Gather the whole map ``(image, channel, y, x)`` on every rank; differentiable."""
        self.check_gradient()
        if self._whole is not None:
            return self._whole
        places = [(slice(None), slice(None), *box.slices) for box in self.partition.boxes]
        return all_gather(self.local, self.mesh, self.shape, places)

    def like(self, local: Tensor) -> DistributedMap:
        """Return a map with the same boundaries and another part.

        Args:
            local: This rank's part ``(image, channel, y, x)``.
        """
        return DistributedMap(local, self.partition, self.mesh)

    def apply_view(self, view: Callable[[Tensor], Any]) -> Any:
        """Return one or several views of the map; changes in place are visible in both directions.

        Args:
            view: A function that leaves space alone; it is applied to all that this rank has of the map.
        """
        if self.halo_boxes is None:
            return wrap_all(view(self.local), self._view)
        reach = self.halo_boxes
        same = self._whole is self.source
        wholes = iter(() if self._whole is None or same else _tensors_of(view(self._whole)))

        def again(window: Tensor) -> DistributedMap:
            out = local_map(window, self.mesh, self.partition, reach)
            out._whole = window if same else next(wholes, None)
            return out

        return wrap_all(view(self.source), again)

    def saved(self) -> Self:
        """Return a copy that shares the values and needs gradients alike, without their history."""
        out: Self = self.apply_view(lambda own: own.detach().requires_grad_(own.requires_grad))
        return out

    def _view(self, local: Tensor) -> DistributedMap:
        """Return a view of the map, of whose changes the map's gathered copies must know."""
        out = self.like(local)
        if out.dtype == self.dtype:
            out.copies = self.copies
        return out

    def changed_in_place(self) -> DistributedMap:
        """Discard a separate replicated whole after a change of this rank's values; return this map."""
        if self._whole is not None and not shares_memory(self._whole, self.source):
            self._whole = None
        return self

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Handle a torch function that has a map among its arguments."""
        return registry.apply(function, args, dict(kwargs or {}))

    def __repr__(self) -> str:  # type: ignore[override]  # torch's takes contents
        return f"DistributedMap({tuple(self.shape)}, {self.dtype}, {self.box} on {self.mesh})"


def wrap_all(out: Any, wrap: Callable[[Tensor], DistributedMap]) -> Any:
    """Apply ``wrap`` to a tensor, or to the tensors of a tuple or list."""
    if isinstance(out, Tensor):
        return wrap(out)
    if isinstance(out, tuple | list):
        return type(out)(wrap_all(one, wrap) for one in out)
    return out


def _tensors_of(out: Any) -> Iterable[Tensor]:
    return (out,) if isinstance(out, Tensor) else out


def crop_or_zeros(source: Tensor, box: Box, origin: Box) -> Tensor:
    """Crop a tensor that covers the box ``origin`` to ``box``."""
    if not box.size:  # an empty box need not be inside the other
        return connected_zeros((*source.shape[:2], *box.shape), source)
    return crop(source, box, origin)


def local_map(
    window: Tensor, mesh: Mesh, partition: Partition, halo_boxes: tuple[Box, ...] | None = None
) -> DistributedMap:
    """Create a distributed map from the window that this rank has.

    Args:
        window: This rank's part ``(image, channel, y, x)``, or the box ``halo_boxes[rank]`` if given.
        mesh: The ranks.
        partition: Boundaries of the parts in the plane.
        halo_boxes: Box (y, x) that each rank gives, at least its part; the additional halo is not fetched.

    Returns:
        The map.

    Raises:
        GeometryError: The shapes do not fit.
    """
    if halo_boxes is None:
        return DistributedMap(window, partition, mesh)
    for rank, (box, own) in enumerate(zip(halo_boxes, partition.boxes, strict=True)):
        if not box.contains(own):
            raise GeometryError(f"rank {rank} gives {box} of a map, which does not contain its part {own}")
    if tuple(window.shape[2:]) != halo_boxes[mesh.rank].shape:
        raise GeometryError(
            f"rank {mesh.rank} must give {halo_boxes[mesh.rank].shape} pixels of a map, got "
            f"{tuple(window.shape[2:])}"
        )
    out = DistributedMap.without_memory((*window.shape[:2], *partition.shape), window)
    out._local, out.partition, out.mesh, out.source, out.halo_boxes = (
        None,
        partition,
        mesh,
        window,
        halo_boxes,
    )
    out.copies = AliasGuard()
    return out
