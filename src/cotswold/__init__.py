"""Cotswold: deep, locally connected networks on the machines that people have.

Names are handed on lazily, so that ``import cotswold`` costs nothing: sub-packages load when first touched.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__version__ = "0.1.0"
_PACKAGES = (
    "analysis",
    "bench",
    "data",
    "errors",
    "geometry",
    "kernels",
    "launch",
    "mesh",
    "nn",
    "ops",
    "optim",
    "recipe",
    "run",
    "simulate",
    "testing",
    "training",
)
__all__ = ["__version__", *_PACKAGES]


def __getattr__(name: str) -> ModuleType:
    if name in _PACKAGES:
        return importlib.import_module(f"cotswold.{name}")
    raise AttributeError(f"module 'cotswold' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
