"""Sources, preparation, stores and the reader: pictures on their way to the network."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.data.opening import open_source as open_source
    from cotswold.data.preparation import Preparation as Preparation
    from cotswold.data.preparation import Transform as Transform
    from cotswold.data.preparing import Summary as Summary
    from cotswold.data.preparing import prepare as prepare
    from cotswold.data.reader import Reader as Reader
    from cotswold.data.reader import shuffle_bytes as shuffle_bytes
    from cotswold.data.source import Source as Source
    from cotswold.data.store import Store as Store
    from cotswold.data.streaming import Stream as Stream
    from cotswold.data.streaming import stream as stream
    from cotswold.data.synthetic import write_demo as write_demo
    from cotswold.data.verifying import verify_store as verify_store
    from cotswold.data.whiteness import Whiteness as Whiteness

_HOME = {
    "Preparation": "preparation",
    "Reader": "reader",
    "Source": "source",
    "Store": "store",
    "Stream": "streaming",
    "Summary": "preparing",
    "Transform": "preparation",
    "Whiteness": "whiteness",
    "open_source": "opening",
    "prepare": "preparing",
    "shuffle_bytes": "reader",
    "stream": "streaming",
    "verify_store": "verifying",
    "write_demo": "synthetic",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"cotswold.data.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cotswold.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
