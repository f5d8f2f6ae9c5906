"""Operands of rules: maps of different boundaries, replicated tensors, and checks of arguments.

Knows: which boundaries a result has, redistribution. Does not know: functions, windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.geometry import Box, ExchangePlan, Partition
from cotswold.mesh.maps.distributed_tensor import DistributedTensor
from cotswold.mesh.maps.exchange import Exchange
from cotswold.mesh.maps.map import DistributedMap, crop_or_zeros, local_map
from cotswold.mesh.ranks.collectives import all_reduce_backward, connected_zeros
from cotswold.nn.layer_base import autocast


class NeedsWholeError(Exception):
    """A rule cannot compute on parts; the function gets the gathered whole on every rank.

    Rules raise it before any message, alike on all ranks.
    """


def check_changeable(name: str, args: tuple[Any, ...]) -> None:
    """Raise UserError unless a function changes the map whose boundaries its operands get."""
    if not isinstance(args[0], DistributedMap) or args[0] is not widest_map(list(args)):
        raise UserError(
            f"{name} in place changes a tensor or map that has other boundaries than the other maps; use "
            "the out-of-place function"
        )


def usual_names(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return arguments by torch's names, where torch also accepts those of NumPy."""
    if "axis" not in kwargs and "keepdims" not in kwargs:
        return kwargs
    names = {"axis": "dim", "keepdims": "keepdim"}
    return {names.get(key, key): value for key, value in kwargs.items()}


def widest_map(values: list[Any]) -> DistributedMap:
    """Return the map whose boundaries the result has: the first of those with the largest plane."""
    maps = [value for value in values if isinstance(value, DistributedMap)]
    return max(maps, key=lambda x: x.shape[2] * x.shape[3])


def local_operand(value: Any, like: DistributedMap, box: Box | None = None) -> Any:
    """Return the local slice of a pointwise operand that matches this rank's part of ``like``, or ``box``."""
    if value is like and box is not None:
        return value.source
    if isinstance(value, DistributedTensor):
        if isinstance(value, DistributedMap) and value.shape[2:] == like.shape[2:] and box is None:
            return redistribute(value, like.partition).local
        value = value.full_tensor()
    if not isinstance(value, Tensor) or value.dim() == 0:
        return all_reduce_backward(value, like.mesh) if isinstance(value, Tensor) else value
    if value.dim() > 4 or any(
        mine not in (1, whole) for mine, whole in zip(value.shape[:-3:-1], like.shape[:-3:-1], strict=False)
    ):
        raise UserError(
            f"a tensor {tuple(value.shape)} does not broadcast with a distributed map {tuple(like.shape)}; "
            "its last two dimensions must be those of the map, or 1"
        )
    value = all_reduce_backward(value, like.mesh)
    rows, columns = (like.box if box is None else box).slices
    if value.shape[-1] != 1:
        value = value[..., columns]
    if value.dim() > 1 and value.shape[-2] != 1:
        value = value[..., rows, :]
    return value


def redistribute(x: DistributedMap, partition: Partition) -> DistributedMap:
    """Redistribute a map to other boundaries."""
    if x.partition == partition:
        return x
    boxes = partition.boxes
    if x.halo_boxes is not None and all(a.contains(b) for a, b in zip(x.halo_boxes, boxes, strict=True)):
        rank = x.mesh.rank
        return DistributedMap(crop_or_zeros(x.source, boxes[rank], x.halo_boxes[rank]), partition, x.mesh)
    between = x.mesh.cached(
        (redistribute, x.partition, partition),
        lambda: Exchange(x.mesh, ExchangePlan(x.partition.boxes, boxes)),
    )
    return DistributedMap(between(x.local), partition, x.mesh)


def compute_part(
    box: Box, channels: int, compute: Callable[[], Tensor], window: Tensor, *parameters: Tensor | None
) -> Tensor:
    """Compute a rank's part of an output, ``(image, channels, *box)``, or nothing if it is empty."""
    if box.size:
        return compute()
    learnt = (values for values in parameters if values is not None)
    return connected_zeros((window.shape[0], channels, *box.shape), window, *learnt)


def autocast_operands(x: DistributedMap, *learnt: Tensor | None) -> tuple[DistributedMap, list[Any]]:
    """Cast a map and parameters to autocast's type, as for products, also on ranks without outputs."""
    (source,) = autocast(x.source)
    if source is not x.source:
        passing = x.passing
        x = x.like(source) if x.halo_boxes is None else local_map(source, x.mesh, x.partition, x.halo_boxes)
        x.passing = passing
    return x, [None if values is None else autocast(values)[0] for values in learnt]


def pair(value: Any, name: str) -> tuple[int, int]:
    """Return one or two integers as (y, x)."""
    if isinstance(value, int):
        return value, value
    numbers = tuple(int(one) for one in value)
    if len(numbers) not in (1, 2):
        raise UserError(f"{name} of a map must have one or two numbers, got {value!r}")
    return numbers[0], numbers[-1]


def refuse_other_maps(name: str, *values: object) -> None:
    """Raise UserError if an operand that must be replicated is a map."""
    if any(isinstance(value, DistributedMap) for value in values):
        raise UserError(f"{name} takes only one distributed map; call full_tensor() on others")


def gradients(
    out: Tensor, learnt: tuple[Any, ...], needed: tuple[bool, ...], grad: Tensor
) -> Iterator[Tensor | None]:
    """Gradients of an output with respect to those operands that need one; differentiable."""
    sources = [one for one, wanted in zip(learnt, needed, strict=True) if wanted]
    found = iter(torch.autograd.grad(out, sources, grad, create_graph=True))
    return (next(found) if wanted else None for wanted in needed)
