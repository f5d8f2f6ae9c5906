"""Distributed maps and partitioned networks over torch.distributed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.mesh.maps.exchange import Exchange as Exchange
    from cotswold.mesh.maps.exchange import Pending as Pending
    from cotswold.mesh.maps.map import DistributedMap as DistributedMap
    from cotswold.mesh.maps.map import local_map as local_map
    from cotswold.mesh.modules.layer import SpatialLayer as SpatialLayer
    from cotswold.mesh.modules.parameters import own_box as own_box
    from cotswold.mesh.modules.partition import partition as partition
    from cotswold.mesh.ranks.mesh import Mesh as Mesh
    from cotswold.mesh.stacks.stack import TrainedStack as TrainedStack

_HOME = {
    "DistributedMap": "maps.map",
    "Exchange": "maps.exchange",
    "Mesh": "ranks.mesh",
    "Pending": "maps.exchange",
    "SpatialLayer": "modules.layer",
    "TrainedStack": "stacks.stack",
    "local_map": "maps.map",
    "own_box": "modules.parameters",
    "partition": "modules.partition",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.mesh.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.mesh' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
