"""State machines of servers: message in, messages out.

Knows: portions of a training set, parameter shards, who is alive. Does not know: tensors of torch, sockets,
clocks, disks, threads; the arithmetic on a shard is an argument.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
