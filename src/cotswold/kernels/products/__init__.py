"""The three heavy products of a block-local layer: their plans, their tiles, and how they are run."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.kernels.products.problem import finishes as finishes
    from cotswold.kernels.products.run import activated as activated
    from cotswold.kernels.products.run import adjoint as adjoint
    from cotswold.kernels.products.run import outer as outer
    from cotswold.kernels.products.run import product as product
    from cotswold.kernels.products.run import step as step

_HOME = {
    "activated": "run",
    "adjoint": "run",
    "finishes": "problem",
    "outer": "run",
    "product": "run",
    "step": "run",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        found = getattr(importlib.import_module(f"cotswold.kernels.products.{_HOME[name]}"), name)
        globals()[name] = found  # asked for again in every step
        return found
    raise AttributeError(f"module 'cotswold.kernels.products' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
