"""Distributed maps and partitioned networks over torch.distributed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.mesh.exchange import Exchange as Exchange
    from cotswold.mesh.exchange import Pending as Pending
    from cotswold.mesh.ranks import Mesh as Mesh
    from cotswold.mesh.stack import TrainedStack as TrainedStack

_HOME = {
    "Exchange": "exchange",
    "Mesh": "ranks",
    "Pending": "exchange",
    "TrainedStack": "stack",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.mesh.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.mesh' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
