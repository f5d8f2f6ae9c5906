"""Distributed maps: each rank holds a part of every channel's plane.

Knows: parts, cuts, how torch's functions reach the rules for maps. Does not know: the rules, messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

import torch
from torch import Tensor

from cotswold.errors import GeometryError, UserError
from cotswold.geometry import Box, Partition
from cotswold.mesh.maps.crop import crop
from cotswold.mesh.maps.in_parts import Copies, InParts, refuse_gradient, register_part_hook, shares_memory
from cotswold.mesh.ranks.collectives import all_gather, all_reduce_backward, connected_zeros
from cotswold.mesh.ranks.mesh import Mesh


class DistributedMap(InParts):
    """A map ``(image, channel, y, x)`` of which each rank holds a part; torch's functions take it.

    ``local`` is this rank's part, an ordinary tensor of autograd; ``partition`` says how the plane is cut.
    What is computed point by point stays in parts, windows fetch what they need from other ranks, sums over
    space are whole on every rank. All ranks do the same to the same maps in one order.
    """

    called = "a distributed map"

    def __new__(cls, local: Tensor, partition: Partition, mesh: Mesh) -> Self:
        """A tensor of the shape of the whole."""
        return cls.without_memory((*local.shape[:2], *partition.shape), local)

    def __init__(self, local: Tensor, partition: Partition, mesh: Mesh) -> None:
        own = partition.box(mesh.rank)
        if partition.grid != mesh.grid or local.dim() != 4 or tuple(local.shape[2:]) != own.shape:
            raise GeometryError(
                f"rank {mesh.rank} has the part (image, channel, {own.shape[0]}, {own.shape[1]}) of a map, "
                f"not {tuple(local.shape)}"
            )
        self._local: Tensor | None = local
        self.partition, self.mesh = partition, mesh
        self.source, self.copies = local, Copies()
        self.reach: tuple[Box, ...] | None = None
        """The pixels that each rank has in its ``source``, where that is more than its part."""

    _whole: Tensor | None = None
    passing = False
    """Whether the whole of which the part was cut is wanted no longer: windows are copied out of it."""

    @classmethod
    def of(cls, whole: Tensor, mesh: Mesh, partition: Partition | None = None) -> DistributedMap:
        """The map of a tensor that every rank has, in even parts or those that are given; no message."""
        height, width = whole.shape[2:]
        partition = partition or Partition.even((height, width), mesh.grid)
        reach = (Box.whole((height, width)),) * mesh.size
        out = local_map(all_reduce_backward(whole, mesh), mesh, partition, reach)
        out._whole = whole
        return out

    @property
    def local(self) -> Tensor:
        """This rank's part of the map."""
        if self._local is None:
            assert self.reach is not None
            self._local = cut_out(self.source, self.box, self.reach[self.mesh.rank])
        return self._local

    @property
    def box(self) -> Box:
        """Where this rank's part lies in the plane (y, x)."""
        return self.partition.box(self.mesh.rank)

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]  # these are attributes in torch's stubs
        """The shape of the whole map."""
        return torch.Size((*self.source.shape[:2], *self.partition.shape))

    def dim(self) -> int:
        """Always four."""
        return 4

    ndim = 4

    def numel(self) -> int:
        """The number of values of the whole map."""
        return self.shape.numel()

    nelement, ndimension = numel, dim

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]  # as above
        """The type of the values."""
        return self.source.dtype

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # as above
        """Where this rank's part lies."""
        return self.source.device

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow into the map."""
        return self.source.requires_grad

    @requires_grad.setter
    def requires_grad(self, _: bool) -> None:
        refuse_gradient(self)

    def register_hook(self, hook: Callable[[Any], Any]) -> Any:
        """Register a function of the gradient, which is a map as this is; raises UserError for a batch."""
        if self.reach is not None:
            raise UserError(
                "register_hook of a batch that came from outside: no rank has its gradient before the "
                "backward pass ends; register it on the batch itself, or on the output of a layer"
            )
        return register_part_hook(self.source, hook, self.like)

    def is_floating_point(self) -> bool:
        """Whether the values are floating-point numbers."""
        return self.source.is_floating_point()

    def full_tensor(self) -> Tensor:
        """The whole map on every rank, an ordinary tensor; differentiable."""
        self.check_gradient()
        if self._whole is not None:
            return self._whole
        places = [(slice(None), slice(None), *box.slices) for box in self.partition.boxes]
        return all_gather(self.local, self.mesh, self.shape, places)

    def like(self, local: Tensor) -> DistributedMap:
        """A map of the same cuts with another part."""
        return DistributedMap(local, self.partition, self.mesh)

    def viewed(self, view: Callable[[Tensor], Any]) -> Any:
        """A view of the map, or several, in which changes in place are seen through the map, and the reverse.

        ``view`` leaves space alone; it is applied to all that this rank has of the map.
        """
        if self.reach is None:
            return wrapped(view(self.local), self.like)
        reach = self.reach
        same = self._whole is self.source
        wholes = iter(() if self._whole is None or same else _each(view(self._whole)))

        def again(window: Tensor) -> DistributedMap:
            out = local_map(window, self.mesh, self.partition, reach)
            out._whole = window if same else next(wholes, None)
            return out

        return wrapped(view(self.source), again)

    def changed_in_place(self) -> DistributedMap:
        """This map, after all that this rank has of it was changed: a whole that lies elsewhere is old."""
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
        """What torch calls instead of its own function where an argument is a map."""
        from cotswold.mesh.rules.registry import apply

        return apply(function, args, dict(kwargs or {}))

    def __repr__(self) -> str:  # type: ignore[override]  # torch's takes contents
        return f"DistributedMap({tuple(self.shape)}, {self.dtype}, {self.box} on {self.mesh})"


def wrapped(out: Any, wrap: Callable[[Tensor], DistributedMap]) -> Any:
    """Tensors as maps."""
    if isinstance(out, Tensor):
        return wrap(out)
    if isinstance(out, tuple | list):
        return type(out)(wrapped(one, wrap) for one in out)
    return out


def _each(out: Any) -> Iterable[Tensor]:
    return (out,) if isinstance(out, Tensor) else out


def cut_out(source: Tensor, box: Box, origin: Box) -> Tensor:
    """What lies on a box of a map's plane, of a tensor that lies on the box ``origin``."""
    if not box.size:  # it need not lie in the other
        return connected_zeros((*source.shape[:2], *box.shape), source)
    return crop(source, box, origin)


def local_map(
    window: Tensor, mesh: Mesh, partition: Partition, reach: tuple[Box, ...] | None = None
) -> DistributedMap:
    """The map of which this rank gives ``window``: its part, or with ``reach`` the box ``reach[rank]``.

    ``reach`` has the box (y, x) that each rank gives, at least its own part; pixels that it has need not be
    fetched from others. Raises GeometryError where shapes do not fit.
    """
    if reach is None:
        return DistributedMap(window, partition, mesh)
    for rank, (box, own) in enumerate(zip(reach, partition.boxes, strict=True)):
        if not box.contains(own):
            raise GeometryError(f"rank {rank} gives {box} of a map, which lacks some of its part, {own}")
    if tuple(window.shape[2:]) != reach[mesh.rank].shape:
        raise GeometryError(
            f"rank {mesh.rank} gives {reach[mesh.rank].shape} pixels of a map, not {tuple(window.shape[2:])}"
        )
    out = DistributedMap.without_memory((*window.shape[:2], *partition.shape), window)
    out._local, out.partition, out.mesh, out.source, out.reach = None, partition, mesh, window, reach
    out.copies = Copies()
    return out
