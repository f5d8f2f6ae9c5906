"""What tests may use, those of other packages too: several hosts on one machine."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.testing.hosts import Hosts as Hosts
    from cotswold.testing.hosts import Rate as Rate
    from cotswold.testing.hosts import Traffic as Traffic
    from cotswold.testing.hosts import remove_leftovers as remove_leftovers
    from cotswold.testing.hosts import why_not as why_not

_HOME = {
    "Hosts": "hosts",
    "Rate": "hosts",
    "Traffic": "hosts",
    "remove_leftovers": "hosts",
    "why_not": "hosts",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.testing.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
