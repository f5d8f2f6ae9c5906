"""Table of the rules for torch's functions on distributed maps, and the names of pointwise functions.

Knows: the modules that register rules, the kind of each function. Does not know: maps, what a rule computes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

Rule = Callable[..., Any]
_RULES: dict[str, Rule] = {}
_ARRAY_RULES: dict[str, Rule] = {}
_MODULES = (
    *("dispatch", "shape", "sums", "losses", "norms", "interpolation", "windows", "pooling"),
    *("space", "sampling", "whole"),
)
"""Modules of this package that register rules."""
_ARRAY_MODULES = ("dispatch", "shape", "joins", "reductions", "channels", "products", "attention", "space")
"""Modules of the sub-package ``arrays`` that register rules of distributed arrays."""
_R = TypeVar("_R", bound=Rule)
DISPATCH = "__torch_function__"
"""Name of the rule that receives every function of a distributed map or array."""

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


def rule(*names: str) -> Callable[[_R], _R]:
    """Register a rule for functions of these names."""

    def register(function: _R) -> _R:
        for name in names:
            _RULES[name] = function
        return function

    return register


def array_rule(*names: str) -> Callable[[_R], _R]:
    """Register a rule of distributed arrays for functions of these names."""

    def register(function: _R) -> _R:
        for name in names:
            _ARRAY_RULES[name] = function
        return function

    return register


def find_array_rule(name: str) -> Rule | None:
    """Return the rule of distributed arrays for functions of this name, or None."""
    return _ARRAY_RULES.get(name)


def find_rule(name: str) -> Rule | None:
    """Return the rule for functions of this name, or None."""
    return _RULES.get(name)


def apply(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Handle a torch function that has a distributed map among its arguments; see `dispatch.dispatch`."""
    _load()
    return _RULES[DISPATCH](function, args, kwargs)


def apply_to_arrays(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Handle a torch function that has a distributed array among its arguments; see `arrays.dispatch`."""
    _load()
    return _ARRAY_RULES[DISPATCH](function, args, kwargs)


@cache
def _load() -> None:
    """Import all rules; they are complete when this returns, in any thread."""
    for module in _MODULES:
        importlib.import_module(f"cotswold.mesh.rules.{module}")
    for module in _ARRAY_MODULES:
        importlib.import_module(f"cotswold.mesh.rules.arrays.{module}")
