"""Line searches: how far to go along a direction, as generators that are sent what was found."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
