"""FLOP formulas of the local products for torch.utils.flop_counter, which counts 0 without a formula.

Knows: the formulas, when to register them. Does not know: how a product is computed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from cotswold.geometry import BlockLocal

_COUNTER = "torch.utils.flop_counter"
_formulas: dict[Any, Callable[..., int]] = {}
_registered: set[Any] = set()


def count(name: str, code_place: int, decode: Callable[[tuple[int, ...]], BlockLocal]) -> None:
    """Add a formula for the operation ``cotswold::name``; argument ``code_place`` is its encoded layer."""

    def formula(images: Sequence[int], *args: Any, out_shape: Any = None) -> int:
        return int(images[0]) * decode(tuple(args[code_place - 1])).product_flops

    _formulas[getattr(torch.ops.cotswold, name)] = formula


def announce() -> None:
    """Register the formulas once torch's counter is imported, also with a counter that is already active.

    The counter imports Triton, which takes a third of a second; other programs should not pay for that.
    """
    if _COUNTER not in sys.modules or len(_registered) == len(_formulas) or torch.compiler.is_compiling():
        return
    from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

    for operation, formula in _formulas.items():
        if operation not in flop_registry:
            register_flop_formula(operation)(formula)
        _registered.add(operation)
    for mode in _get_current_dispatch_mode_stack():
        counter = getattr(mode, "counter", mode)
        if isinstance(counter, FlopCounterMode):
            counter.flop_registry.update({one: flop_registry[one] for one in _formulas})
