"""Sources, preparation, stores and the reader: samples on their way to the network.

One name is from above: ``cotswold.data.connect`` is `cotswold.connect_data`, by which a program's own loop
takes batches from data servers. It is handed on when it is asked for, and nothing in this package knows of
it.
"""

from __future__ import annotations

import lazy_loader

_own_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "connect":
        from cotswold import connect_data

        return connect_data
    return _own_name(name)
