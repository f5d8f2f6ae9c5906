"""Cotswold: deep, locally connected networks on the machines that people have.

Names are handed on lazily, so that ``import cotswold`` costs nothing: sub-packages load when first touched.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__version__ = "0.1.0"
__all__ = ["__version__", "analysis", "data", "geometry", "nn", "ops", "optim", "recipe", "run", "training"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"cotswold.{name}")
    raise AttributeError(f"module 'cotswold' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
