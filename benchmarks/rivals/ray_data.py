"""A rival: Ray Data, whose tasks transform batches.

Knows: ray.data. Does not know: Cotswold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import ray

from rivals.feeding import Feeding, measured, pictures, transformed


def batches(feeding: Feeding) -> Iterator[Any]:
    """Epoch after epoch, shuffled in blocks and in a local buffer, as its guide says is cheapest."""
    whole = pictures(feeding)
    parts = [whole[start : start + 5000] for start in range(0, len(whole), 5000)]
    data = ray.data.from_numpy([np.ascontiguousarray(each) for each in parts]).materialize()
    seed = 0

    def moved(given: dict[str, Any]) -> dict[str, Any]:
        draws = np.random.default_rng().random((len(given["data"]), 4), np.float32)
        return {"data": transformed(given["data"], draws)}

    while True:
        seed += 1
        shuffled = data.randomize_block_order(seed=seed)
        mapped = shuffled.map_batches(moved, batch_size=feeding.batch, concurrency=max(feeding.workers, 1))
        for each in mapped.iter_batches(
            batch_size=feeding.batch,
            prefetch_batches=4,
            drop_last=True,
            local_shuffle_buffer_size=8 * feeding.batch,
        ):
            yield each["data"]


if __name__ == "__main__":
    asked = Feeding.asked()
    ray.init(address="local", num_cpus=max(asked.workers, 1), include_dashboard=False, log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    measured(asked, batches(asked))
    ray.shutdown()
