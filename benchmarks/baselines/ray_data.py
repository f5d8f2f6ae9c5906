"""Baseline: Ray Data, whose tasks transform batches.

Knows: ray.data. Does not know: which library transforms.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import ray

from baselines.common import LoaderSettings, images, measured, transform_name, transformed


def batches(feeding: LoaderSettings) -> Iterator[Any]:
    """Yield batches of endless epochs, shuffled in blocks and in a local buffer, which Ray's guide calls
    cheapest."""
    whole = images(feeding)
    part = max(feeding.batch, (15 << 20) // whole[0].nbytes)
    parts = [whole[start : start + part] for start in range(0, len(whole), part)]
    data = ray.data.from_numpy([np.ascontiguousarray(each) for each in parts]).materialize()
    seed = 0

    def moved(given: dict[str, Any]) -> dict[str, Any]:
        return {"data": transformed(feeding, given["data"], np.random.default_rng())}

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
    asked = LoaderSettings.asked()
    path = {"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}}
    ray.init(
        address="local",
        num_cpus=max(asked.workers, 1),
        include_dashboard=False,
        log_to_driver=False,
        runtime_env=path,
    )
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    measured(asked, batches(asked), transform_name(asked))
    ray.shutdown()
