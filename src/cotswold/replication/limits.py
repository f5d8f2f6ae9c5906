"""Whether a run is such that servers can give each other copies, and controllers keep what it is.

Knows: how long buckets and descriptions are, and may be. Does not know: processes, who has which bucket.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np

from cotswold.errors import UserError
from cotswold.replication.controller.bucket_map import DESCRIPTION_LETTERS
from cotswold.replication.run_description import Description
from cotswold.shards.core.versions import later
from cotswold.words import counted

_STATES = 2
"""That a bucket has while a checkpoint is taken: what is now, and what was frozen."""
_VERSION_LETTERS = len(f"{later(0, 9)}, ")
"""Of a shard whose bucket was lost up to nine times, but for what disks had."""


def check_description(description: Description) -> None:
    """Raises UserError where what controllers are to keep of a run is too long; of one that begins, where it
    would be once the run is resumed, with a version of each shard."""
    shards, tensors = len(description.shards), len(description.layout)
    rest = len(replace(description, versions=()).text)
    length = len(description.text) if description.versions else rest + _VERSION_LETTERS * shards
    if length <= DESCRIPTION_LETTERS:
        return
    said = (
        f"the parameters are {counted(tensors, 'tensor')} in {counted(shards, 'shard')}: what the parameter "
        "servers' controllers "
        f"keep of the run would have {length} letters, and may have {DESCRIPTION_LETTERS}"
    )
    room = (DESCRIPTION_LETTERS - rest) // _VERSION_LETTERS - tensors
    if room <= 0:
        raise UserError(
            f"{said}; leave out cluster.parameter_servers, cluster.server_copies and cluster.flush_seconds: "
            "servers without copies have no controller"
        )
    numbers = sum(one.stop - one.start for one in description.shards)
    all_kilobytes = numbers * np.dtype(description.dtype).itemsize / 1024
    raise UserError(f"{said}; set training.shard_kilobytes = {math.ceil(all_kilobytes / room)}, or more")


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
        f"the parameters have {all_bytes} bytes in {counted(len(bytes_of), 'bucket')}: with all vectors, and "
        f"those of a checkpoint, a copy of one is {_STATES * vectors * largest} bytes, and {message_bytes} "
        "at most can be sent at once"
    )
    if shard >= bound:
        raise UserError(
            f"{said}; a shard has {shard} bytes, and may have {bound // 2}: give smaller "
            "training.shard_kilobytes"
        )
    raise UserError(f"{said}; set cluster.buckets = {-(-all_bytes // (bound - shard))}, or more")
