"""What this host grants, and how processes know and reach each other.

Cores, the run's token, network interfaces, memory that processes share, messages between two of them.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
