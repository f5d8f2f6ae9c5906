"""Patterns as a data set of torch, made when they are asked for.

Knows: what a map-style data set is. Does not know: how patterns are made, batches, training.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cotswold.data.datasets.japanese_ocr.japanese_set import JapaneseSet
from cotswold.errors import UserError


class PatternDataset(Dataset[tuple[Tensor, Tensor]]):
    """The first ``count`` training patterns of a set, as many as it is to have by default: ink from 0 to 1,
    float32 (400,), and the number of the class. Nothing is stored; the same patterns each time."""

    def __init__(self, made: JapaneseSet, count: int | None = None) -> None:
        if count is not None and count < 1:
            raise UserError(f"a data set of {count} patterns is empty; give 1 or more")
        self.made = made
        self._count = made.request.patterns if count is None else count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Several at once, which takes a tenth of the time; torch's loaders ask so."""
        chosen = np.asarray(numbers, np.int64)
        beyond = chosen[(chosen < 0) | (chosen >= self._count)]
        if len(beyond):
            raise IndexError(f"pattern {beyond[0]} is not one of {self._count:,}")
        ink = torch.from_numpy(self.made.patterns(chosen)).to(torch.float32) / 255
        return list(zip(ink, torch.from_numpy(self.made.labels(chosen)), strict=True))
