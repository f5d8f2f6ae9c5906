"""Machine-printed Japanese: the set of Bunyip's experiment, rendered from typefaces that are installed."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
