"""File access that survives kills: files appear whole or not at all, and links are not followed."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
