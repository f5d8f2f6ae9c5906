"""The processes of a run on several ranks: how they find each other, what happens when one dies."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
