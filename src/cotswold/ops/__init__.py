"""Differentiable operations on maps and filters, and the step of a stack."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.ops.activated import fully_connected as fully_connected
    from cotswold.ops.activated import local_layer as local_layer
    from cotswold.ops.contrast import contrast_norm as contrast_norm
    from cotswold.ops.filters import filter_norms as filter_norms
    from cotswold.ops.filters import random_filters as random_filters
    from cotswold.ops.local import local_adjoint as local_adjoint
    from cotswold.ops.local import local_outer as local_outer
    from cotswold.ops.local import local_product as local_product
    from cotswold.ops.order import images_first as images_first
    from cotswold.ops.order import images_last as images_last
    from cotswold.ops.pooling import l2_pool as l2_pool
    from cotswold.ops.state import StackObjective as StackObjective
    from cotswold.ops.state import StackReport as StackReport
    from cotswold.ops.state import StackState as StackState
    from cotswold.ops.state import StepRule as StepRule
    from cotswold.ops.step import calibrate as calibrate
    from cotswold.ops.step import stack_step as stack_step

_HOME = {
    "StackObjective": "state",
    "StackReport": "state",
    "StackState": "state",
    "StepRule": "state",
    "calibrate": "step",
    "contrast_norm": "contrast",
    "fully_connected": "activated",
    "filter_norms": "filters",
    "images_first": "order",
    "images_last": "order",
    "l2_pool": "pooling",
    "local_adjoint": "local",
    "local_layer": "activated",
    "local_outer": "local",
    "local_product": "local",
    "random_filters": "filters",
    "stack_step": "step",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.ops.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.ops' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
