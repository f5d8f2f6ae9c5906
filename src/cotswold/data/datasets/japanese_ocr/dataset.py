"""Training samples as a PyTorch dataset, generated on access.

Knows: map-style datasets. Does not know: the generation of samples, batches, training.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cotswold.data.datasets.japanese_ocr.japanese_set import JapaneseSet
from cotswold.errors import UserError


class GeneratedDataset(Dataset[tuple[Tensor, Tensor]]):
    """The first ``count`` training samples of a set, generated on access and identical each time.

    A sample is ``(ink, class)``: float32 (400,), ink from 0 to 1, and the number of the class.

    Args:
        made: The set.
        count: Number of samples. [that of the set]

    Raises:
        UserError: if ``count`` is below 1.
    """

    def __init__(self, made: JapaneseSet, count: int | None = None) -> None:
        if count is not None and count < 1:
            raise UserError(f"count must be at least 1, got {count}")
        self.source_set = made
        self._count = made.request.samples if count is None else count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Return several samples at once, in a tenth of the time; torch's loaders use it."""
        chosen = np.asarray(numbers, np.int64)
        beyond = chosen[(chosen < 0) | (chosen >= self._count)]
        if len(beyond):
            raise IndexError(f"sample {beyond[0]} is not one of {self._count:,}")
        ink = torch.from_numpy(self.source_set.samples(chosen)).to(torch.float32) / 255
        return list(zip(ink, torch.from_numpy(self.source_set.labels(chosen)), strict=True))
