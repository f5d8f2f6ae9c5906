"""Block store for shards on the disk of a parameter server, and a thread that writes to it in the background.

Knows: buckets, vectors, shards by number, folders, threads. Does not know: the contents of heads, servers,
terms.
Chilimbi et al. 2014, section 3.3.2 (delayed persistence) and 3.3.3 (a log-structured store of blocks).
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
