"""Whole-set gradients (Bunyip, Sandblaster): portions, coordinator, workers, reductions.

`core` has the state machines, `runtime` the processes. A program with its own training loop opens a cluster
with `open_cluster`.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
