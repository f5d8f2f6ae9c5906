"""What this host grants: cores, and (later) memory, processes, the run token."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.host.cores import granted_cores as granted_cores
    from cotswold.host.cores import waiting_settings as waiting_settings

_HOME = {
    "granted_cores": "cores",
    "waiting_settings": "cores",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.host.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.host' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
