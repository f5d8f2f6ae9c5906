"""Distributed maps and partitioned networks over torch.distributed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.mesh.exchange import Exchange as Exchange
    from cotswold.mesh.exchange import Pending as Pending
    from cotswold.mesh.layer import SpatialLayer as SpatialLayer
    from cotswold.mesh.map import DistributedMap as DistributedMap
    from cotswold.mesh.map import local_map as local_map
    from cotswold.mesh.ranks import Mesh as Mesh
    from cotswold.mesh.stack import TrainedStack as TrainedStack
    from cotswold.mesh.twins import partition as partition

_HOME = {
    "DistributedMap": "map",
    "Exchange": "exchange",
    "Mesh": "ranks",
    "Pending": "exchange",
    "SpatialLayer": "layer",
    "TrainedStack": "stack",
    "local_map": "map",
    "partition": "twins",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.mesh.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.mesh' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
