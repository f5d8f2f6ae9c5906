"""Callbacks: the base class, and the callbacks of Cotswold (docs/callbacks.md).

Knows: the public names. Does not know: how callbacks are called.
"""

from __future__ import annotations

from cotswold.training.callbacks.base import Callback, CallbackContext, StopTraining
from cotswold.training.callbacks.early_stopping import EarlyStopping
from cotswold.training.callbacks.ema import ModelEMA
from cotswold.training.callbacks.gradient_norms import GradientNorms
from cotswold.training.callbacks.lr_monitor import LRMonitor

__all__ = [
    "Callback",
    "CallbackContext",
    "EarlyStopping",
    "GradientNorms",
    "LRMonitor",
    "ModelEMA",
    "StopTraining",
]
