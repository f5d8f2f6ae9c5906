"""Clusters that are not at hand: devices, links and topologies, and what an update would take on them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.simulate.choice import choose_grid as choose_grid
    from cotswold.simulate.choice import fastest_grid as fastest_grid
    from cotswold.simulate.choice import grids as grids
    from cotswold.simulate.choice import predicted_grids as predicted_grids
    from cotswold.simulate.cluster import Cluster as Cluster
    from cotswold.simulate.here import this_machine as this_machine
    from cotswold.simulate.layers import LayerWork as LayerWork
    from cotswold.simulate.prediction import Prediction as Prediction
    from cotswold.simulate.prediction import predict as predict
    from cotswold.simulate.reader import load_cluster as load_cluster
    from cotswold.simulate.reader import parse_cluster as parse_cluster
    from cotswold.simulate.reader import shipped_clusters as shipped_clusters
    from cotswold.simulate.stacks import StackWork as StackWork
    from cotswold.simulate.work import stages as stages
    from cotswold.simulate.work import workload as workload

_HOME = {
    "Cluster": "cluster",
    "LayerWork": "layers",
    "Prediction": "prediction",
    "StackWork": "stacks",
    "choose_grid": "choice",
    "fastest_grid": "choice",
    "grids": "choice",
    "load_cluster": "reader",
    "parse_cluster": "reader",
    "predict": "prediction",
    "predicted_grids": "choice",
    "shipped_clusters": "reader",
    "stages": "work",
    "this_machine": "here",
    "workload": "work",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.simulate.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.simulate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
