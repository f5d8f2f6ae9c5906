"""Everything about a store that can be checked without training.

Knows: the manifest, the files that it lists, what arrays and labels must look like. Does not know: how a
store is made or read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from cotswold.data.store.store import Store
from cotswold.errors import StoreError

Progress = Callable[[int, int], None]
"""Called with the files checked and the files in all."""


def verify_store(path: str | Path, progress: Progress | None = None) -> list[str]:
    """What is wrong with a store, a sentence each that names the file; empty where it is sound.

    Reads every byte: the manifest, the size and checksum of every file, then the shape and type of every
    array and the range of every label. A store whose manifest cannot be believed is one finding.
    """
    try:
        store = Store.unchecked(path)
    except StoreError as error:
        return [str(error)]
    findings, keys = store.links(), store.files
    for done, key in enumerate(keys, 1):
        finding = store.fault_of(key)
        if finding is not None:
            findings.append(finding)
        if progress is not None:
            progress(done, len(keys))
    return findings or list(_contradictions(store))


def _contradictions(store: Store) -> Iterator[str]:
    """What arrays of intact files say otherwise than the manifest."""
    for split, pictures in store.splits.items():
        try:
            store.read_stored(split, 0, 0)  # opens the array, and so compares its shape
            labels, _ = store.labels(split), store.lengths(split)
        except StoreError as error:
            yield str(error)
            continue
        if store.targets:
            if not np.isfinite(labels).all():
                yield f"{split} of {store.path} has targets that are not finite; prepare the store anew"
            continue
        lowest, highest = (0, len(store.classes) - 1) if store.classes else (-1, -1)
        wrong = np.flatnonzero((labels < lowest) | (labels > highest))
        if len(labels) != pictures:
            yield f"{split} of {store.path} has {len(labels)} labels for {pictures} samples"
        elif len(wrong):
            first = int(wrong[0])
            yield (
                f"{len(wrong)} labels in {split} of {store.path} are of none of its {len(store.classes)} "
                f"classes (sample {first} has {labels[first]}); prepare the store anew"
            )
