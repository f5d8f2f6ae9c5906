"""State machines of servers: message in, messages out.

Knows: portions of a training set, parameter shards, who is alive. Does not know: tensors of torch, sockets,
clocks, disks, threads; the arithmetic on a shard is an argument.

One name is from above: ``cotswold.server.connect`` is `cotswold.connect`, by which a program's own loop pulls
and pushes. It is handed on when it is asked for, and nothing in this package knows of it.
"""

from __future__ import annotations

import lazy_loader

_own_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "connect":
        from cotswold import connect

        return connect
    return _own_name(name)
