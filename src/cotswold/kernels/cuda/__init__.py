"""Block-local products on CUDA, in Triton (an optional extra), which is not imported before it is used."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
