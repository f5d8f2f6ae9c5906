"""Messages between independent processes: ZeroMQ sockets, the run's token, shared memory within a host.

Knows: sockets, frames, authentication. Does not know: the meaning of messages.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
