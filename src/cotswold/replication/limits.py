"""Limits of replication: the sizes of buckets and of run descriptions.

Knows: the sizes of buckets and descriptions, and their limits. Does not know: processes, groups.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np

from cotswold.errors import UserError
from cotswold.phrases import counted
from cotswold.replication.controller.bucket_map import MAX_DESCRIPTION_CHARS
from cotswold.replication.run_description import Description
from cotswold.shards.core.versions import version_after_restarts

_STATES = 2
"""States of a bucket while a checkpoint is taken: the current and the frozen one."""
_VERSION_CHARS = len(f"{version_after_restarts(0, 9)}, ")
"""Characters of a shard's version whose bucket was recovered from disks up to nine times."""


def check_description(description: Description) -> None:
    """Raise UserError if the description of a run is too long for controllers. A new run must also have
    room for a version of each shard, which it has once it is resumed."""
    shards, tensors = len(description.shards), len(description.layout)
    rest = len(replace(description, versions=()).text)
    length = len(description.text) if description.versions else rest + _VERSION_CHARS * shards
    if length <= MAX_DESCRIPTION_CHARS:
        return
    said = (
        f"the parameters are {counted(tensors, 'tensor')} in {counted(shards, 'shard')}: their "
        "description, which the parameter servers' controllers "
        f"keep, would have {length} letters; at most {MAX_DESCRIPTION_CHARS} fit"
    )
    room = (MAX_DESCRIPTION_CHARS - rest) // _VERSION_CHARS - tensors
    if room <= 0:
        raise UserError(
            f"{said}; leave out cluster.controllers, cluster.replication_factor and cluster.flush_seconds: "
            "servers without copies have no controller"
        )
    numbers = sum(one.stop - one.start for one in description.shards)
    all_kilobytes = numbers * np.dtype(description.dtype).itemsize / 1024
    raise UserError(f"{said}; set training.shard_kilobytes = {math.ceil(all_kilobytes / room)}, or more")


def check_messages(description: Description, vectors: int, message_bytes: int) -> None:
    """Raise UserError if a bucket is too large for one message of a run with ``vectors`` vectors: a new
    replica receives the whole bucket at once."""
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
        f"those of a checkpoint, a copy of one is {_STATES * vectors * largest} bytes; {message_bytes} "
        "bytes fit in a message"
    )
    if shard >= bound:
        raise UserError(
            f"{said}; a shard has {shard} bytes, at most {bound // 2} fit: set smaller "
            "training.shard_kilobytes"
        )
    raise UserError(f"{said}; set cluster.max_buckets = {-(-all_bytes // (bound - shard))}, or more")
