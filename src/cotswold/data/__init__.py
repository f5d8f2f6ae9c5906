"""Sources, preparation, stores and the reader: samples on their way to the network."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
