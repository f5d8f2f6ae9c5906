"""Sources, preparation, stores and the reader: samples on their way to the network."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotswold.data.dataset import StoreDataset as StoreDataset
    from cotswold.data.opening import open_samples as open_samples
    from cotswold.data.opening import open_source as open_source
    from cotswold.data.opening import open_vectors as open_vectors
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
    from cotswold.data.transforms import AnyPreparation as AnyPreparation
    from cotswold.data.transforms import AnyTransform as AnyTransform
    from cotswold.data.transforms import of_pictures as of_pictures
    from cotswold.data.transforms import transform_from_state as transform_from_state
    from cotswold.data.vector_preparation import VectorPreparation as VectorPreparation
    from cotswold.data.vector_preparation import VectorTransform as VectorTransform
    from cotswold.data.vectors import VectorSource as VectorSource
    from cotswold.data.verifying import verify_store as verify_store
    from cotswold.data.whiteness import Whiteness as Whiteness

_HOME = {
    "AnyPreparation": "transforms",
    "AnyTransform": "transforms",
    "Preparation": "preparation",
    "Reader": "reader",
    "Source": "source",
    "Store": "store",
    "StoreDataset": "dataset",
    "Stream": "streaming",
    "Summary": "preparing",
    "Transform": "preparation",
    "VectorPreparation": "vector_preparation",
    "VectorSource": "vectors",
    "VectorTransform": "vector_preparation",
    "Whiteness": "whiteness",
    "open_samples": "opening",
    "open_source": "opening",
    "open_vectors": "opening",
    "of_pictures": "transforms",
    "prepare": "preparing",
    "shuffle_bytes": "reader",
    "stream": "streaming",
    "transform_from_state": "transforms",
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
