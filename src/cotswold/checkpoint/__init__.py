"""Checkpoints: named tensors as pieces in files, written by any number of ranks and read by any other."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
