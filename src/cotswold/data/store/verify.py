"""Complete check of a store, without training.

Knows: the manifest, its list of files, the form of arrays and labels. Does not know: how a store is made or
read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from cotswold.data.store.store import Store
from cotswold.errors import StoreError

Progress = Callable[[int, int], None]
"""Called with the number of files checked and the total."""


def verify_store(path: str | Path, progress: Progress | None = None) -> list[str]:
    """Return the faults of a store, one sentence each, naming the file; empty for an intact store.

    Reads every byte: the manifest, the size and checksum of every file, then the shape and dtype of every
    array and the range of every label. An invalid manifest is a single fault.

    Args:
        path: The store.
        progress: Called with the number of files checked and the total.
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
    """Yield contradictions between the arrays of intact files and the manifest."""
    for split, images in store.splits.items():
        try:
            store.read_stored(split, 0, 0)  # opens the array, and so compares its shape
            labels, _ = store.labels(split), store.lengths(split)
        except StoreError as error:
            yield str(error)
            continue
        if store.targets:
            if not np.isfinite(labels).all():
                yield f"{split} of {store.path} has infinite or NaN targets; prepare the store again"
            continue
        lowest, highest = (0, len(store.classes) - 1) if store.classes else (-1, -1)
        wrong = np.flatnonzero((labels < lowest) | (labels > highest))
        if len(labels) != images:
            yield f"{split} of {store.path} has {len(labels)} labels for {images} samples"
        elif len(wrong):
            first = int(wrong[0])
            yield (
                f"{len(wrong)} labels in {split} of {store.path} are not among its {len(store.classes)} "
                f"classes (sample {first} has {labels[first]}); prepare the store again"
            )
