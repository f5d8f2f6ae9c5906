"""Block-local products on CUDA by Triton (an optional extra), which is imported on first use."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
