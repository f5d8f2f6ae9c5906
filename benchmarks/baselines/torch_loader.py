"""Baseline: torch's DataLoader, whose workers transform whole batches.

Knows: torch.utils.data. Does not know: which library transforms.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, get_worker_info

from baselines.common import LoaderSettings, images, measured, transform_name, transformed


class Images(Dataset[torch.Tensor]):
    """Batches by the indices of their images, with new random variants each time."""

    def __init__(self, feeding: LoaderSettings) -> None:
        self._feeding = feeding
        self._images = images(feeding)
        self._chance: np.random.Generator | None = None

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, numbers: list[int]) -> torch.Tensor:
        if self._chance is None:
            worker = get_worker_info()
            self._chance = np.random.default_rng(0 if worker is None else worker.id)
        return torch.from_numpy(transformed(self._feeding, self._images[np.sort(numbers)], self._chance))


def batches(feeding: LoaderSettings) -> Iterator[torch.Tensor]:
    """Yield batches of endless epochs."""
    data = Images(feeding)
    loader = DataLoader(
        data,
        batch_size=None,
        sampler=BatchSampler(RandomSampler(data), feeding.batch, drop_last=True),
        num_workers=feeding.workers,
        persistent_workers=feeding.workers > 0,
        prefetch_factor=4 if feeding.workers else None,
    )
    while True:
        yield from loader


if __name__ == "__main__":
    torch.set_num_threads(1)
    asked = LoaderSettings.asked()
    measured(asked, batches(asked), transform_name(asked))
