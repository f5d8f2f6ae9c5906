"""The rule of pointwise functions on distributed arrays.

Knows: operands with the layout of the largest array, changes in place. Does not know: the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from cotswold.mesh.maps.array import DistributedArray, arranged, array_of
from cotswold.mesh.maps.distributed_tensor import base_name, in_place
from cotswold.mesh.maps.layout import Layout
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.rules.arrays.operands import (
    arrays_in,
    broadcast_layout,
    local_operand,
    refusal,
    viewed,
)
from cotswold.mesh.rules.registry import VIEWS


def pointwise(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Apply a function to every rank's part; operands get the layout of the largest array."""
    changes = in_place(function) or bool(kwargs.get("inplace"))
    operands = [*args, *kwargs.values()]
    found = list(arrays_in(operands))
    first = max(found, key=lambda one: one.numel())
    if changes:
        if not isinstance(args[0], DistributedArray | DistributedMap):
            raise refusal(f"{base_name(function)} in place of a replicated tensor by a distributed array")
        first = array_of(args[0])
        if first.is_copy:
            raise refusal(f"{base_name(function)} in place of a batch from outside by a distributed array")
    layout = broadcast_layout(first, operands)
    own = [local_operand(arg, layout, first.mesh) for arg in args]
    named = {key: local_operand(value, layout, first.mesh) for key, value in kwargs.items()}
    out = function(*own, **named)
    if changes:
        return args[0]
    if base_name(function) in VIEWS and len(found) == 1 and isinstance(out, Tensor):
        return viewed(first, out, layout)
    return _wrapped(out, first, layout)


def _wrapped(out: Any, first: DistributedArray, layout: Layout) -> Any:
    if isinstance(out, Tensor):
        return arranged(out, layout, first.mesh)
    if isinstance(out, tuple | list):
        return tuple(_wrapped(one, first, layout) for one in out)
    return out
