"""Data sources, preparation, stores and readers: everything between files on disk and batches of samples.

Knows: files, arrays, augmentation, shuffling. Does not know: networks, training, data servers.

``cotswold.data.connect`` is an alias of `cotswold.connect_data`. It is imported on first use, so that this
package does not depend on the client of data servers.
"""

from __future__ import annotations

import lazy_loader

_own_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "connect":
        from cotswold import connect_data

        return connect_data
    return _own_name(name)
