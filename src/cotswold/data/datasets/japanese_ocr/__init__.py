"""Machine-printed Japanese: the data set of the Bunyip experiment, rendered from installed typefaces."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

MANIFEST = "japanese-ocr.json"
"""Name of the file that describes a set, in its folder."""
