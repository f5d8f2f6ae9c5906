"""Pictures whose pixels are moved: a smooth field of displacements is drawn, and values are interpolated."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
