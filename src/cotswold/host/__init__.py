"""Resources that this host grants to a process, and communication between its processes.

Cores, memory, the run's token, network interfaces, forked processes, messages between two processes.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
