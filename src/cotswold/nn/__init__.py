"""Layers, stacks and networks for anybody's PyTorch model."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.nn.local import LocallyConnected1d as LocallyConnected1d
    from cotswold.nn.local import LocallyConnected2d as LocallyConnected2d
    from cotswold.nn.local import LocallyConnected3d as LocallyConnected3d
    from cotswold.nn.network import StackNetwork as StackNetwork
    from cotswold.nn.smoothing import L2Pool2d as L2Pool2d
    from cotswold.nn.smoothing import LocalContrastNorm2d as LocalContrastNorm2d
    from cotswold.nn.stack import SparseAutoencoderStack as SparseAutoencoderStack

_HOME = {
    "L2Pool2d": "smoothing",
    "LocalContrastNorm2d": "smoothing",
    "LocallyConnected1d": "local",
    "LocallyConnected2d": "local",
    "LocallyConnected3d": "local",
    "SparseAutoencoderStack": "stack",
    "StackNetwork": "network",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.nn.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.nn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
