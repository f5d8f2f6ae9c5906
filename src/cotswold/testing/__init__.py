"""What tests may use, those of other packages too.

Several hosts on one machine with links that are cut and disks that fill, an etcd on them, slow and stopped
processes, contracts that implementations pass.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
