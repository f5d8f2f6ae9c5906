"""Start the ranks of a run, let them find each other, and handle the death of a rank."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
