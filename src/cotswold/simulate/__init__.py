"""Simulation of clusters: devices, links and topologies, and the predicted time of an update on them."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
