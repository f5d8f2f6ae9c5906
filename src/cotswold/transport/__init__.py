"""Messages between processes that live and die alone: ZeroMQ, the run's token, shared memory inside a host.

Knows: sockets, frames, who has proved itself. Does not know: what messages mean.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
