"""The page that shows a run."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.analysis.report.build import LeftOut as LeftOut
    from cotswold.analysis.report.build import build_report as build_report

_HOME = {"LeftOut": "build", "build_report": "build"}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.analysis.report.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.analysis.report' has no attribute {name!r}")
