"""Dispatch of torch's functions on distributed maps to their rules.

Knows: attributes and methods that a map answers itself, which arguments are refused. Does not know: rules.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from cotswold.errors import UserError
from cotswold.geometry import Partition
from cotswold.mesh.maps.array import DistributedArray
from cotswold.mesh.maps.distributed_tensor import ALIKE, attribute_of, base_name, in_place
from cotswold.mesh.maps.map import DistributedMap
from cotswold.mesh.modules.parameters import ShardedParameter
from cotswold.mesh.rules.arrays.dispatch import TRANSPOSED, compute
from cotswold.mesh.rules.arrays.operands import gathered, refusal, whole_parameters
from cotswold.mesh.rules.operands import NeedsWholeError, check_changeable, usual_names, widest_map
from cotswold.mesh.rules.pointwise import pointwise
from cotswold.mesh.rules.registry import DISPATCH, POINTWISE, Rule, apply_to_arrays, find_rule, rule

_EXTENTS = frozenset(("dim", "numel", "size"))
"""Methods that a map answers for the whole."""
_NUMBERS = frozenset(("__bool__", "__complex__", "__float__", "__index__", "__int__"))
"""Methods that Python calls on tensors with one value."""
AT_ONCE = frozenset(("avg_pool2d", "batch_norm", "conv2d", "conv_transpose2d", "group_norm", "max_pool2d"))
"""Functions that use torch's own implementation if one rank has the whole map."""


@rule(DISPATCH)
def dispatch(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Handle a torch function that has a distributed map among its arguments.

    Raises UserError that names the function if it has no rule.
    """
    kinds = set(map(type, _given(args, kwargs)))
    if DistributedArray in kinds:
        return apply_to_arrays(function, args, kwargs)
    attribute, of_map = attribute_of(function), bool(args) and isinstance(args[0], DistributedMap)
    if of_map and (attribute in ALIKE or function.__name__ in ALIKE):
        found = getattr(args[0].source, attribute or function.__name__)
        return found if attribute else found(*args[1:], **kwargs)
    if attribute == "data" and function.__name__ == "__get__":
        return args[0].apply_view(Tensor.detach)
    name = attribute or base_name(function)
    if of_map and name in _EXTENTS:
        return getattr(args[0], name)(*args[1:], **kwargs)
    if (attribute is not None and attribute not in TRANSPOSED) or function.__name__ in _NUMBERS:
        raise refusal(name)
    if name in AT_ONCE:
        first = widest_map([*args, *kwargs.values()])
        if first.mesh.size == 1 and not kwargs.get("return_indices"):
            return _call_locally(function, args, kwargs, first)
    if kwargs.get("out") is not None:
        raise UserError(f"{name} of a distributed map returns a new map; remove out=")
    changes = in_place(function) or bool(kwargs.get("inplace"))
    for one in _given(args, kwargs):
        if isinstance(one, DistributedMap):
            one.check_gradient()
            one.copies.check(name, one.called, changes and one is args[0])
        elif isinstance(one, DTensor):
            raise UserError(
                f"{name} received a distributed map and a DTensor: parameters of a partitioned module are "
                "local only inside of its forward; call the partitioned module"
            )
    if changes:
        check_changeable(name, args)
    found_rule = find_rule(name)
    if ShardedParameter in kinds:
        args, kwargs = whole_parameters(args, kwargs)
    if found_rule is not None:
        try:
            return _call_rule(found_rule, name, args, usual_names(kwargs))
        except NeedsWholeError:
            return gathered(function, args, kwargs)
    if name in POINTWISE and not (name == "where" and len(args) + len(kwargs) == 1):
        return pointwise(function, *args, **kwargs)
    return compute(function, name, args, kwargs)


def _given(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Return the arguments, and those in lists and tuples."""
    for one in (*args, *kwargs.values()):
        yield one
        if isinstance(one, tuple | list):
            yield from one


def _call_rule(rule: Rule, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a rule; raises UserError for arguments that it does not accept."""
    try:
        return rule(*args, **kwargs)
    except TypeError as error:
        try:
            inspect.signature(rule).bind(*args, **kwargs)
        except TypeError:
            raise UserError(
                f"{name} of a distributed map does not accept these arguments: {error}; see docs/mesh.md "
                "for what can be split, or call full_tensor() on the map first"
            ) from None
        raise


def _call_locally(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], first: DistributedMap
) -> DistributedMap:
    """Apply torch's own function if one rank has the whole map."""
    own = [arg.local if isinstance(arg, DistributedMap) else arg for arg in args]
    out = function(*own, **{key: arg.local if arg is first else arg for key, arg in kwargs.items()})
    return DistributedMap(out, Partition.even((out.shape[2], out.shape[3]), first.mesh.grid), first.mesh)
