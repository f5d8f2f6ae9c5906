"""Recipes: a TOML file states what to train, on which data and how; nothing in it is executed."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
