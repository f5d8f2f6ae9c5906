"""Checkpoints: named tensors, split into chunks in files, that any number of ranks can write and read."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
