"""Kernels that pass over maps and filters: pooling, contrast normalisation, norms, copies between layouts."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.kernels.maps.normalisation import Bands as Bands
    from cotswold.kernels.maps.normalisation import Normalisation as Normalisation
    from cotswold.kernels.maps.pooling import pool as pool
    from cotswold.kernels.maps.pooling import pool_gradient as pool_gradient
    from cotswold.kernels.maps.tasks import Workers as Workers

_HOME = {
    "Bands": "normalisation",
    "Normalisation": "normalisation",
    "Workers": "tasks",
    "pool": "pooling",
    "pool_gradient": "pooling",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        found = getattr(importlib.import_module(f"cotswold.kernels.maps.{_HOME[name]}"), name)
        globals()[name] = found  # asked for again in every step
        return found
    raise AttributeError(f"module 'cotswold.kernels.maps' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
