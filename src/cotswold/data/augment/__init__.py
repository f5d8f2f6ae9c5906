"""Augmentation: variants of images by named transforms, each determined by the key of its sample."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
