"""Optimisers as pure functions: so far the schedules of the step size."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.optim.schedule import Schedule as Schedule
    from cotswold.optim.schedule import rate_at as rate_at

_HOME = {"Schedule": "schedule", "rate_at": "schedule"}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.optim.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.optim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
