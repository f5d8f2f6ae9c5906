"""Boxes, windows, block grids, counts of FLOPs and bytes: integers only."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.geometry.block_local import BlockLocal as BlockLocal
    from cotswold.geometry.block_local import MapShape as MapShape
    from cotswold.geometry.box import Box as Box
    from cotswold.geometry.exchange import ExchangePlan as ExchangePlan
    from cotswold.geometry.exchange import Transfer as Transfer
    from cotswold.geometry.partition import Grid as Grid
    from cotswold.geometry.partition import Partition as Partition
    from cotswold.geometry.region import Region as Region
    from cotswold.geometry.stack import Smoothing as Smoothing
    from cotswold.geometry.stack import StackGeometry as StackGeometry
    from cotswold.geometry.stack_partition import StackPartition as StackPartition
    from cotswold.geometry.window import Window as Window

_HOME = {
    "BlockLocal": "block_local",
    "Box": "box",
    "ExchangePlan": "exchange",
    "Grid": "partition",
    "MapShape": "block_local",
    "Partition": "partition",
    "Region": "region",
    "Smoothing": "stack",
    "StackGeometry": "stack",
    "StackPartition": "stack_partition",
    "Transfer": "exchange",
    "Window": "window",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.geometry.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.geometry' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
