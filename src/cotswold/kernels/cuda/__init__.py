"""Block-local products on CUDA, in Triton (an optional extra), which is not imported before it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.kernels.cuda.launch import available as available
    from cotswold.kernels.cuda.products import adjoint as adjoint
    from cotswold.kernels.cuda.products import outer as outer
    from cotswold.kernels.cuda.products import product as product

_HOME = {
    "adjoint": "products",
    "available": "launch",
    "outer": "products",
    "product": "products",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.kernels.cuda.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.kernels.cuda' has no attribute {name!r}")
