"""Cotswold: deep, locally connected networks on the machines that people have.

`train`, `evaluate`, `features` and the other names of docs/python.md, beside the sub-packages. Names are
handed on lazily, so that ``import cotswold`` costs nothing and loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.api.evaluate import evaluate as evaluate
    from cotswold.api.features import Features as Features
    from cotswold.api.features import features as features
    from cotswold.api.features import write_features as write_features
    from cotswold.api.info import Info as Info
    from cotswold.api.info import info as info
    from cotswold.api.predict import Predictions as Predictions
    from cotswold.api.predict import predict as predict
    from cotswold.api.prepare import prepare as prepare
    from cotswold.api.report import report as report
    from cotswold.api.run import Run as Run
    from cotswold.api.train import train as train
    from cotswold.api.verify import Verification as Verification
    from cotswold.api.verify import verify as verify
    from cotswold.errors import CotswoldError as CotswoldError
    from cotswold.mesh import partition as partition
    from cotswold.recipe import Recipe as Recipe
    from cotswold.run import Stop as Stop

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
_HOME = {
    "CotswoldError": "errors",
    "Features": "api.features",
    "Info": "api.info",
    "Predictions": "api.predict",
    "Recipe": "recipe",
    "Run": "api.run",
    "Stop": "run",
    "Verification": "api.verify",
    "evaluate": "api.evaluate",
    "features": "api.features",
    "info": "api.info",
    "partition": "mesh",
    "predict": "api.predict",
    "prepare": "api.prepare",
    "report": "api.report",
    "train": "api.train",
    "verify": "api.verify",
    "write_features": "api.features",
}
__all__ = ["__version__", *_HOME, *_PACKAGES]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.{_HOME[name]}"), name)
    if name in _PACKAGES:
        return importlib.import_module(f"cotswold.{name}")
    raise AttributeError(f"module 'cotswold' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
