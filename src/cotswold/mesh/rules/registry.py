"""Rules for torch's functions on distributed maps: their table, and pointwise functions.

Knows: the kind of each function, how to combine maps of different boundaries and replicated tensors. Does not
know: windows, sums (their modules register rules here).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from cotswold.errors import UserError
from cotswold.geometry import Box, ExchangePlan, Partition
from cotswold.mesh.maps.distributed_tensor import ALIKE, DistributedTensor, attribute_of, base_name, in_place
from cotswold.mesh.maps.exchange import Exchange
from cotswold.mesh.maps.map import DistributedMap, cut_out, local_map, wrapped
from cotswold.mesh.ranks.collectives import all_reduce_backward, connected_zeros
from cotswold.nn.layer_base import autocast

Rule = Callable[..., Any]
_RULES: dict[str, Rule] = {}
_MODULES = ("shape", "sums", "losses", "norms", "interpolation", "windows", "pooling")
"""Modules of this package that register rules."""
_R = TypeVar("_R", bound=Rule)

_NAMES = """
    abs absolute acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bfloat16 bitwise_and
    bitwise_not bitwise_or bitwise_xor ceil celu clamp clamp_max clamp_min clip clone contiguous
    copysign cos cosh deg2rad detach digamma div divide double elu eq erf erfc erfinv exp exp2 expm1 fix
    float float_power floor floor_divide fmod frac ge gelu gt half hardshrink hardsigmoid hardswish
    hardtanh heaviside hypot isclose isfinite isinf isnan ldexp le leaky_relu lerp lgamma log log10
    log1p log2 log_sigmoid logaddexp logical_and logical_not logical_or logical_xor logit logsigmoid lt
    masked_fill maximum minimum mish mul multiply nan_to_num ne neg negative ones_like pos positive pow
    rad2deg reciprocal relu relu6 remainder round rsqrt rsub selu sgn sigmoid sign signbit silu sin sinc
    sinh softplus softshrink softsign sqrt square sub subtract tan tanh tanhshrink threshold to
    true_divide trunc type where xlogy zeros_like full_like radd rmul rtruediv rpow truediv floordiv mod
    invert and or xor iadd isub imul itruediv
"""
POINTWISE = frozenset(_NAMES.split())
"""Functions that compute each output from the values at the same place."""
VIEWS = frozenset(
    ("bfloat16", "contiguous", "detach", "double", "float", "half", "pos", "positive", "to", "type")
)
"""Pointwise functions that may return their own operand, or a view of it."""
_EXTENTS = frozenset(("dim", "numel", "size"))
"""Methods that a map answers for the whole."""
_NUMBERS = frozenset(("__bool__", "__complex__", "__float__", "__index__", "__int__"))
"""Methods that Python calls on tensors with one value."""
AT_ONCE = frozenset(("avg_pool2d", "batch_norm", "conv2d", "conv_transpose2d", "group_norm", "max_pool2d"))
"""Functions that use torch's own implementation if one rank has the whole map."""


def rule(*names: str) -> Callable[[_R], _R]:
    """Register a rule for functions of these names."""

    def register(function: _R) -> _R:
        for name in names:
            _RULES[name] = function
        return function

    return register


def apply(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Handle a torch function that has a distributed map among its arguments.

    Raises UserError that names the function if it has no rule.
    """
    _load()
    attribute, of_map = attribute_of(function), bool(args) and isinstance(args[0], DistributedMap)
    if of_map and (attribute in ALIKE or function.__name__ in ALIKE):
        found = getattr(args[0].source, attribute or function.__name__)
        return found if attribute else found(*args[1:], **kwargs)
    if attribute == "data" and function.__name__ == "__get__":
        return args[0].viewed(Tensor.detach)
    name = attribute or base_name(function)
    if of_map and name in _EXTENTS:
        return getattr(args[0], name)(*args[1:], **kwargs)
    if attribute is not None or function.__name__ in _NUMBERS:
        raise _refusal(name)
    if name in AT_ONCE:
        first = widest_map([*args, *kwargs.values()])
        if first.mesh.size == 1 and not kwargs.get("return_indices"):
            return _alone(function, args, kwargs, first)
    if kwargs.get("out") is not None:
        raise UserError(f"{name} of a distributed map returns a new map; remove out=")
    changes = in_place(function) or bool(kwargs.get("inplace"))
    for one in (*args, *kwargs.values(), *(args[0] if args and isinstance(args[0], tuple | list) else ())):
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
    if name in _RULES:
        return _called(_RULES[name], name, args, kwargs)
    if name in POINTWISE:
        return pointwise(function, *args, **kwargs)
    raise _refusal(name)


def _refusal(name: str) -> UserError:
    return UserError(
        f"{name} cannot be computed on a distributed map; call full_tensor() on the map first, or write the "
        "layer as a cotswold.mesh.SpatialLayer"
    )


@cache
def _load() -> None:
    """Import all rules; they are complete when this returns, in any thread."""
    for module in _MODULES:
        importlib.import_module(f"cotswold.mesh.rules.{module}")


def _called(rule: Rule, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
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


def check_changeable(name: str, args: tuple[Any, ...]) -> None:
    """Raise UserError unless a function changes the map whose boundaries its operands get."""
    if not isinstance(args[0], DistributedMap) or args[0] is not widest_map(list(args)):
        raise UserError(
            f"{name} in place changes a tensor or map that has other boundaries than the other maps; use "
            "the out-of-place function"
        )


def _alone(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], first: DistributedMap
) -> DistributedMap:
    """Apply torch's own function if one rank has the whole map."""
    own = [arg.local if isinstance(arg, DistributedMap) else arg for arg in args]
    out = function(*own, **{key: arg.local if arg is first else arg for key, arg in kwargs.items()})
    return DistributedMap(out, Partition.even((out.shape[2], out.shape[3]), first.mesh.grid), first.mesh)


def pointwise(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Apply the function to every rank's part; operands get the boundaries of the widest map.

    In place it changes all that a rank has of the first operand, so that its views and its halo change as in
    one process.
    """
    first = widest_map([*args, *kwargs.values()])
    maps = [one for one in (*args, *kwargs.values()) if isinstance(one, DistributedMap)]
    changes = in_place(function) or bool(kwargs.get("inplace"))
    if maps == [first] and first is args[0] and not changes and base_name(function) in VIEWS:
        return first.viewed(lambda own: function(own, *args[1:], **kwargs))
    box = first.halo_boxes[first.mesh.rank] if changes and first.halo_boxes is not None else None
    own = [local_operand(arg, first, box) for arg in args]
    named = {name: local_operand(value, first, box) for name, value in kwargs.items()}
    if box is not None and torch.is_grad_enabled() and any(map(_learns, (*own, *named.values()))):
        raise UserError(
            f"{base_name(function)} in place changes a batch from outside while gradients are recorded; use "
            "the out-of-place function"
        )
    out = function(*own, **named)
    return first.changed_in_place() if changes else wrapped(out, first.like)


def _learns(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


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
        return DistributedMap(cut_out(x.source, boxes[rank], x.halo_boxes[rank]), partition, x.mesh)
    between = x.mesh.cached(
        (redistribute, x.partition, partition),
        lambda: Exchange(x.mesh, ExchangePlan(x.partition.boxes, boxes)),
    )
    return DistributedMap(between(x.local), partition, x.mesh)


def part_of(
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


def undistributed_dim(dim: int, name: str) -> int:
    """Return a dimension that is not distributed, 0 or 1; raises UserError for others."""
    dim = dim + 4 if dim < 0 else dim
    if dim not in (0, 1):
        raise UserError(
            f"{name} along dimension {dim} of a distributed map is not supported; call full_tensor() first"
        )
    return dim


def only_maps(name: str, *values: object) -> None:
    """Raise UserError if an operand that must be replicated is a map."""
    if any(isinstance(value, DistributedMap) for value in values):
        raise UserError(f"{name} takes only one distributed map; call full_tensor() on others")
