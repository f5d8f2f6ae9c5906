"""Metadata store of the controllers: SQLite on one host, etcd on several.

Knows: keys, transactions, files, etcd. Does not know: the meaning of keys, leaders, servers, buckets.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
