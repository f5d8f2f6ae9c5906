"""Strategies, the loop they share, networks built from recipes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.run import Stop as Stop
    from cotswold.training.job import Job as Job
    from cotswold.training.job import StoreJob as StoreJob
    from cotswold.training.modules import ModuleJob as ModuleJob
    from cotswold.training.modules import open_module_job as open_module_job
    from cotswold.training.networks import LayerNetwork as LayerNetwork
    from cotswold.training.networks import build_layers as build_layers
    from cotswold.training.networks import build_stacks as build_stacks
    from cotswold.training.opening import Resume as Resume
    from cotswold.training.opening import open_job as open_job
    from cotswold.training.pictures import labelled_batches as labelled_batches
    from cotswold.training.pictures import training_maps as training_maps
    from cotswold.training.prepared import Prepared as Prepared
    from cotswold.training.restore import Trained as Trained
    from cotswold.training.restore import load_stacks as load_stacks
    from cotswold.training.restore import not_begun as not_begun
    from cotswold.training.restore import random_stacks as random_stacks
    from cotswold.training.restore import trained_layers as trained_layers
    from cotswold.training.restore import trained_stacks as trained_stacks
    from cotswold.training.stores import kept_store as kept_store
    from cotswold.training.stores import open_store as open_store
    from cotswold.training.stores import store_of as store_of

_HOME = {
    "Job": "job",
    "LayerNetwork": "networks",
    "ModuleJob": "modules",
    "Prepared": "prepared",
    "Resume": "opening",
    "StoreJob": "job",
    "Trained": "restore",
    "build_layers": "networks",
    "build_stacks": "networks",
    "kept_store": "stores",
    "labelled_batches": "pictures",
    "load_stacks": "restore",
    "open_job": "opening",
    "open_module_job": "modules",
    "open_store": "stores",
    "random_stacks": "restore",
    "store_of": "stores",
    "not_begun": "restore",
    "trained_layers": "restore",
    "trained_stacks": "restore",
    "training_maps": "pictures",
}
__all__ = [*_HOME, "Stop"]


def __getattr__(name: str) -> Any:
    if name == "Stop":
        return importlib.import_module("cotswold.run").Stop
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.training.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.training' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
