"""Kernels that pass over maps and filters: pooling, contrast normalisation, norms, changes of layout."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
