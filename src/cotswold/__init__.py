"""Cotswold trains PyTorch models across a handful of ordinary, unequal, unreliable machines.

The package has `train`, `evaluate`, `features` and the other names of docs/python.md, and the sub-packages.
Names load at their first use, so ``import cotswold`` is fast and does not load torch; `__init__.pyi`
lists them.
"""

from __future__ import annotations

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
