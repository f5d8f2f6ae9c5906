"""The rule of pointwise functions on distributed maps.

Knows: operands with the boundaries of the widest map, changes in place. Does not know: the functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.mesh.maps.distributed_tensor import base_name, in_place
from cotswold.mesh.maps.map import DistributedMap, wrap_all
from cotswold.mesh.rules.operands import local_operand, widest_map
from cotswold.mesh.rules.registry import VIEWS


def pointwise(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Apply the function to every rank's part; operands get the boundaries of the widest map.

    In place it changes all that a rank has of the first operand, so that its views and its halo change as in
    one process.
    """
    first = widest_map([*args, *kwargs.values()])
    maps = [one for one in (*args, *kwargs.values()) if isinstance(one, DistributedMap)]
    changes = in_place(function) or bool(kwargs.get("inplace"))
    if maps == [first] and first is args[0] and not changes and base_name(function) in VIEWS:
        return first.apply_view(lambda own: function(own, *args[1:], **kwargs))
    box = first.halo_boxes[first.mesh.rank] if changes and first.halo_boxes is not None else None
    own = [local_operand(arg, first, box) for arg in args]
    named = {name: local_operand(value, first, box) for name, value in kwargs.items()}
    if box is not None and torch.is_grad_enabled() and any(map(_learns, (*own, *named.values()))):
        raise UserError(
            f"{base_name(function)} in place changes a batch from outside while gradients are recorded; use "
            "the out-of-place function"
        )
    out = function(*own, **named)
    return first.changed_in_place() if changes else wrap_all(out, first.like)


def _learns(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad
