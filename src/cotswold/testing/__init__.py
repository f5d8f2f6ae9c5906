"""Tools for tests, also those of other packages.

Several hosts on one machine with cuttable links and small disks, an etcd on them, slow and stopped processes,
and contract tests that every implementation of an interface must pass.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
