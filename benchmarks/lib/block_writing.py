"""A block store compared with a plain file on the same disk.

Knows: both kinds of write, syncs. Does not know: servers.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from cotswold.bench.measure import Document, rates, ratios
from cotswold.replication.disk import BlockKey, BlockStore, BucketSnapshot

LEAST_WANTED = 0.6

Progress = Callable[[int, int], None]
Groups = Sequence[Sequence[memoryview]]


def block_writing(
    folder: Path, size: int, block_bytes: int, group_bytes: int, rounds: int, progress: Progress | None = None
) -> Document:
    """Return MiB per second of each way, round by round, alternating; the first round is a warm-up.

    `new` writes every block under a new key. `again` writes every group over the first one, like the blocks
    of a model in training. The blocks are normal random float32, which compress as badly as weights.
    """
    groups = _groups(size, block_bytes, group_bytes)
    ways: dict[str, Callable[[Path], None]] = {
        "file": lambda place: _write_file(place, groups),
        "new": lambda place: _write_store(place, groups, len(groups)),
        "again": lambda place: _write_store(place, groups, 1),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(rounds + 1):
        for name in _turned([*ways], number):
            with tempfile.TemporaryDirectory(dir=folder) as place:
                start = time.perf_counter()
                ways[name](Path(place))
                if number:
                    seconds[name].append(time.perf_counter() - start)
        if progress is not None:
            progress(number + 1, rounds + 1)
    mib = sum(block.nbytes for group in groups for block in group) / (1 << 20)
    return {
        "mib": mib,
        "block_kib": block_bytes / 1024,
        "group_mib": group_bytes / (1 << 20),
        "rounds": rounds,
        "least_wanted": LEAST_WANTED,
        "mib_per_second": {name: rates(mib, each).as_dict() for name, each in seconds.items()},
        "of_file": {name: ratios(seconds["file"], seconds[name]).as_dict() for name in ("new", "again")},
    }


def _groups(size: int, block_bytes: int, group_bytes: int) -> Groups:
    """Return blocks by group, which share a few contents."""
    chance = np.random.default_rng(0)
    contents = [
        chance.standard_normal(max(1, block_bytes // 4), dtype=np.float32).data.cast("B") for _ in range(16)
    ]
    in_group = max(1, group_bytes // block_bytes)
    return [
        [contents[(group + place) % len(contents)] for place in range(in_group)]
        for group in range(max(1, size // (in_group * block_bytes)))
    ]


def _write_file(place: Path, groups: Groups) -> None:
    file = os.open(place / "file", os.O_WRONLY | os.O_CREAT)
    try:
        for group in groups:
            for block in group:
                os.write(file, block)
            os.fsync(file)
    finally:
        os.close(file)


def _write_store(place: Path, groups: Groups, buckets: int) -> None:
    with BlockStore(place / "store") as store:
        for number, group in enumerate(groups):
            blocks = {BlockKey("weights", shard): block for shard, block in enumerate(group)}
            store.write(BucketSnapshot(f"bucket {number % buckets}", number + 1, b"", blocks))


def _turned(names: list[str], number: int) -> Iterator[str]:
    """Return the names rotated, so that each round starts with another one."""
    at = number % len(names)
    return iter(names[at:] + names[:at])
