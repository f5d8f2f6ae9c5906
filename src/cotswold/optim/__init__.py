"""Conjugate gradient and L-BFGS as commands on named vectors, line searches, learning-rate schedules."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
