"""Processes that live and die alone: workers, parameter servers, the coordinator, and messages between them.

Knows: sockets, processes, clocks. Does not know: networks; its work comes as ``"module:function"``.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
