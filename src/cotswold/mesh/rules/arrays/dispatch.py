"""Dispatch of torch's functions on distributed arrays to their rules; the rest computes on wholes.

Knows: attributes that an array answers itself, what is refused, pointwise functions. Does not know: rules.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from cotswold.errors import UserError
from cotswold.mesh.maps.array import DistributedArray
from cotswold.mesh.maps.distributed_tensor import ALIKE, attribute_of, base_name, in_place
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.rules.arrays.operands import (
    gathered,
    refusal,
    viewed,
    whole_parameters,
)
from cotswold.mesh.rules.arrays.pointwise import pointwise
from cotswold.mesh.rules.operands import NeedsWholeError, usual_names
from cotswold.mesh.rules.registry import DISPATCH, POINTWISE, Rule, array_rule, find_array_rule

EXTENTS = frozenset(("dim", "numel", "size", "ndim", "nelement", "ndimension"))
TRANSPOSED = frozenset(("T", "mT", "H", "mH"))
CHANGING = frozenset(("dropout", "setitem"))
"""Functions whose rules change their first operand."""
_NAMES = """
    backward retain_grad requires_grad grad set resize storage untyped_storage data_ptr share_memory
    pin_memory apply map map2 as_strided
    __array__ __bool__ __complex__ __deepcopy__ __dlpack__ __float__ __index__ __int__ __reduce_ex__
"""
_REFUSED = frozenset(_NAMES.split())
"""Functions that are refused, because they change the tensor, read its memory, or need one value."""
_OF_SEQUENCES = frozenset(("conv1d", "conv_transpose1d"))
"""Functions that are refused for maps, which have too many dimensions."""
_MORE_POINTWISE = frozenset(("bool", "byte", "int", "long", "short"))


@array_rule(DISPATCH)
def dispatch(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Handle a torch function that has a distributed array among its arguments."""
    attribute, first = attribute_of(function), args[0] if args else None
    if isinstance(first, DistributedArray):
        name = attribute or function.__name__
        if name in ALIKE:
            found = getattr(first.local, name)
            return found if attribute else found(*args[1:], **kwargs)
        if attribute == "data" and function.__name__ == "__get__":
            return viewed(first, first.local.detach(), first.axes)
    if attribute is not None and (attribute not in TRANSPOSED or function.__name__ != "__get__"):
        raise refusal(attribute)
    name = attribute or base_name(function)
    if isinstance(first, DistributedArray) and name in EXTENTS:
        found = getattr(first, name)
        return found(*args[1:], **kwargs) if callable(found) else found
    return compute(function, name, args, kwargs)


def compute(function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Compute a function of maps and arrays on parts by its rule, or on wholes."""
    of_sequences = name in _OF_SEQUENCES and isinstance(args[0], DistributedMap)
    if name in _REFUSED or function.__name__ in _REFUSED or of_sequences:
        raise refusal(name)
    if kwargs.get("out") is not None:
        raise UserError(f"{name} of a distributed array returns a new array; remove out=")
    changes = in_place(function) or bool(kwargs.get("inplace"))
    for one in tree_leaves((args, kwargs)):
        if isinstance(one, DistributedArray | DistributedMap):
            one.check_gradient()
            one.copies.check(name, one.called, changes and one is args[0])
        elif isinstance(one, DTensor):
            raise UserError(
                f"{name} received a distributed array and a DTensor: parameters of a partitioned module are "
                "local only inside of its forward; call the partitioned module"
            )
    args, kwargs = whole_parameters(args, kwargs)
    kwargs = {key: value for key, value in usual_names(kwargs).items() if key != "out"}
    found_rule = find_array_rule(name)
    try:
        if name in POINTWISE | _MORE_POINTWISE and not (name == "where" and len(args) + len(kwargs) == 1):
            return pointwise(function, args, kwargs)
        if (
            found_rule is not None
            and (not changes or name in CHANGING)
            and _accepts(found_rule, args, kwargs)
        ):
            return found_rule(*args, **kwargs)
    except NeedsWholeError:
        pass
    return gathered(function, args, kwargs)


def _accepts(rule: Rule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(rule).bind(*args, **kwargs)
    except TypeError:
        return False
    return True
