"""Whether the buckets of a run are such that servers can give each other copies of them.

Knows: how long a bucket is, and a message may be. Does not know: processes, who has which bucket.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from cotswold.cluster.description import Description
from cotswold.errors import UserError

_STATES = 2
"""That a bucket has while a checkpoint is taken: what is now, and what was frozen."""


def check_messages(description: Description, vectors: int, message_bytes: int) -> None:
    """Raises UserError where a bucket is too long for one message of a run that has so many vectors: a server
    that gets a copy is sent all of a bucket at once."""
    item_bytes = np.dtype(description.dtype).itemsize
    bytes_of: Counter[str] = Counter()
    for one in description.shards:
        bytes_of[one.server] += (one.stop - one.start) * item_bytes
    largest, all_bytes = max(bytes_of.values()), sum(bytes_of.values())
    bound = message_bytes // (_STATES * vectors)
    if largest <= bound:
        return
    shard = max(one.stop - one.start for one in description.shards) * item_bytes
    said = (
        f"the parameters have {all_bytes} bytes in {len(bytes_of)} buckets: with all vectors, and those of a "
        f"checkpoint, a copy of one is {_STATES * vectors * largest} bytes, and {message_bytes} at most can "
        "be sent at once"
    )
    if shard >= bound:
        raise UserError(
            f"{said}; a shard has {shard} bytes, and may have {bound // 2}: give smaller "
            "training.shard_kilobytes"
        )
    raise UserError(f"{said}; set cluster.buckets = {-(-all_bytes // (bound - shard))}, or more")
