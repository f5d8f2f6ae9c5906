"""Parameters of partitioned modules: DTensors on the mesh, sharded or replicated.

Knows: DTensor's own split, on one dimension or two. Does not know: what is computed with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.utils._pytree import tree_leaves, tree_map

from cotswold.errors import UserError
from cotswold.geometry import Box, Grid
from cotswold.geometry.partition import chunk_bounds
from cotswold.mesh.maps.distributed_tensor import (
    ALIKE,
    DistributedTensor,
    attribute_of,
    base_name,
    in_place,
)
from cotswold.mesh.ranks.collectives import WEIGHT
from cotswold.mesh.ranks.mesh import Mesh


def two_level_chunk_bounds(extent: int, grid: Grid) -> tuple[int, ...]:
    """Return the boundaries of an axis divided over all ranks.

    The axis is divided over the rows of the grid, and each part over its columns.

    >>> two_level_chunk_bounds(10, Grid(2, 2))
    (0, 3, 5, 8, 10)
    """
    rows = chunk_bounds(extent, grid.rows)
    return (
        0,
        *(
            first + at
            for first, stop in pairwise(rows)
            for at in chunk_bounds(stop - first, grid.columns)[1:]
        ),
    )


def own_part(shape: torch.Size, mesh: Mesh, dims: tuple[int, int] | None) -> tuple[slice, ...]:
    """Slices of this rank's part if dimensions ``dims`` are divided over the rows and columns of the grid.

    Twice the same dimension is divided over rows, and each part over columns; None divides nothing.
    """
    slices = [slice(0, extent) for extent in shape]
    if dims is not None:
        iy, ix = mesh.grid.position(mesh.rank)
        down, across = dims
        if down == across:
            cuts = two_level_chunk_bounds(shape[down], mesh.grid)
            slices[down] = slice(cuts[mesh.rank], cuts[mesh.rank + 1])
        else:
            rows, columns = (
                chunk_bounds(shape[down], mesh.grid.rows),
                chunk_bounds(shape[across], mesh.grid.columns),
            )
            slices[down] = slice(rows[iy], rows[iy + 1])
            slices[across] = slice(columns[ix], columns[ix + 1])
    return tuple(slices)


def distributed(whole: Tensor, mesh: Mesh, dims: tuple[int, int] | None) -> nn.Parameter:
    """Shard a replicated parameter: a DTensor with this rank's part, without a message."""
    part = whole.detach()[own_part(whole.shape, mesh, dims)].clone(memory_format=torch.contiguous_format)
    return parameter_of_part(part, whole.shape, mesh, dims, whole.requires_grad)


def parameter_of_part(
    part: Tensor, shape: torch.Size, mesh: Mesh, dims: tuple[int, int] | None, requires_grad: bool = True
) -> nn.Parameter:
    """Create the parameter of ``shape`` of which this rank has ``part``."""
    placements: list[Placement] = [Replicate(), Replicate()] if dims is None else [Shard(dim) for dim in dims]
    stride = torch.empty(shape, device="meta").stride()
    values = DTensor.from_local(
        part, mesh.device_mesh, placements, run_check=False, shape=shape, stride=stride
    )
    return nn.Parameter(values, requires_grad=requires_grad)


def local_part(values: Tensor) -> Tensor:
    """Return this rank's values of a tensor, which share its memory: the part of a DTensor, else all.

    Args:
        values: A parameter, a gradient or a buffer.
    """
    return values.to_local() if isinstance(values, DTensor) else values


def dtensor_like(values: DTensor, part: Tensor) -> DTensor:
    """Return a DTensor with this rank's part, distributed like another, without a message.

    Args:
        values: A parameter.
        part: This rank's part of a gradient, or of a state of an optimiser.
    """
    return DTensor.from_local(
        part,
        values.device_mesh,
        values.placements,
        run_check=False,
        shape=values.shape,
        stride=values.stride(),
    )


def own_box(values: DTensor) -> Box:
    """Return the box of this rank's part in a parameter of a partitioned module.

    Args:
        values: A parameter made by `partition`, or a DTensor with the same placements.

    Returns:
        The index ranges of the part in the whole parameter.
    """
    mesh, shape = values.device_mesh, tuple(values.shape)
    down, across = values.placements
    if not isinstance(down, Shard) or not isinstance(across, Shard):
        return Box.whole(shape)
    place, start, stop = mesh.get_coordinate(), [0] * len(shape), list(shape)
    assert place is not None, "a rank outside of the mesh has no parameters"
    grid = Grid(*mesh.shape)
    if down.dim == across.dim:
        cuts, at = two_level_chunk_bounds(shape[down.dim], grid), place[0] * grid.columns + place[1]
        start[down.dim], stop[down.dim] = cuts[at], cuts[at + 1]
    else:
        for dim, parts, at in zip((down.dim, across.dim), mesh.shape, place, strict=True):
            cuts = chunk_bounds(shape[dim], parts)
            start[dim], stop[dim] = cuts[at], cuts[at + 1]
    return Box(tuple(start), tuple(stop))


class ShardedParameter(DistributedTensor):
    """A sharded parameter as seen by all code but its layer.

    torch's functions get the whole, which they gather, if its layer says how; otherwise they are refused.

    Args:
        local: This rank's part.
        shape: Shape of the whole.
        gather: Returns the whole on every rank; None if it cannot be had inside of a forward.
    """

    called = "a sharded parameter"

    def __new__(cls, local: Tensor, shape: torch.Size, gather: Callable[[], Tensor] | None = None) -> Self:
        """Create a tensor with the shape of the whole."""
        return cls.without_memory(shape, local)

    def __init__(self, local: Tensor, shape: torch.Size, gather: Callable[[], Tensor] | None = None) -> None:
        self.local, self._shape, self._gather = local, shape, gather

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]  # an attribute in torch's stubs
        """Shape of the whole."""
        return self._shape

    def _part(self) -> Tensor:
        """This rank's values, without a message."""
        return self.local

    def full_tensor(self) -> Tensor:
        """Gather the whole on every rank; UserError if its layer does not say how."""
        if self._gather is not None:
            return self._gather()
        raise UserError(
            f"full_tensor() was called inside of a forward on {self.called}; call it on the parameter of "
            "the partitioned module, outside of the forward"
        )

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Raise UserError for functions that would be wrong on a part."""
        attribute = attribute_of(function)
        if attribute in HARMLESS and isinstance(args[0], cls):
            return getattr(args[0].local, attribute)
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, cls)]
        if attribute is None and not in_place(function) and all(one._gather for one in given):
            named = dict(kwargs or {})
            if function.__name__ in ("dim", "size", "numel") and not named:
                return getattr(torch.empty(given[0].shape, device="meta"), function.__name__)(*args[1:])
            args, named = tree_map(
                lambda one: one.full_tensor() if isinstance(one, cls) else one, (args, named)
            )
            return function(*args, **named)
        raise UserError(
            f"{attribute or base_name(function)} was called inside of a forward on {cls.called}, of which "
            "this rank has only its part; call the layer, or compute with the parameter outside of the "
            "forward"
        )

    def __repr__(self) -> str:  # type: ignore[override]  # torch's takes contents
        return f"ShardedParameter({tuple(self.shape)})"


HARMLESS = ALIKE | {"dtype", "device", "requires_grad"}
"""Attributes that are equal for a part of a parameter and for the whole."""


def local_of(values: Tensor) -> Tensor:
    """Return this rank's part of a parameter, for its layer."""
    return values.local if isinstance(values, ShardedParameter) else values


@contextmanager
def local_parameters_installed(module: nn.Module) -> Iterator[None]:
    """Replace parameters and buffers by this rank's parts, as ordinary tensors, for a `with` block.

    Sharded parameters of a module with the attribute ``hides_parts`` become `ShardedParameter`s.
    """
    changed = []
    try:
        for one in module.modules():
            # as torch.func does
            for table in (cast(dict[str, Tensor | None], one._parameters), one._buffers):
                for name, values in table.items():
                    if isinstance(values, DTensor):
                        changed.append((table, name, values))
                        part = values.to_local()
                        if not _is_sharded(values):
                            setattr(part, WEIGHT, (values,))
                        hidden = getattr(one, "hides_parts", False) and _is_sharded(values)
                        gather = getattr(one, "gathered", None)
                        whole = None if gather is None else partial(gather, name, part)
                        table[name] = ShardedParameter(part, values.shape, whole) if hidden else part
        yield
    finally:
        for table, name, values in changed:
            table[name] = values


def _is_sharded(values: DTensor) -> bool:
    return not all(each.is_replicate() for each in values.placements)
