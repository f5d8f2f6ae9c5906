"""Cotswold: deep, locally connected networks on the machines that people have.

`train`, `evaluate`, `features` and the other names of docs/python.md, beside the sub-packages. Names load
when they are first asked for, so that ``import cotswold`` costs nothing and loads no torch; `__init__.pyi`
lists them.
"""

from __future__ import annotations

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
