"""What an evaluator computes: how good parameters are on the validation samples.

Knows: recipes, stores. Does not know: which process this is, where parameters come from.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from cotswold import recipe as recipes
from cotswold.data import Store
from cotswold.errors import StoreError
from cotswold.training.async_sgd.replica_task import Judge


class Validation:
    """The validation samples of a store."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def move_to(self, device: torch.device) -> None:
        """As `Judge.move_to`."""
        self._judge.move_to(device)

    def means(self, parameters: Tensor) -> Mapping[str, float]:
        """As `Judge.means`; raises StoreError where there are no samples."""
        found = self._judge.means(parameters)
        if found is None:
            raise StoreError("the store has no validation samples any more; prepare it again")
        return found


def in_evaluator(recipe: str, store: str) -> Validation:
    """Of a recipe's text, and the path of its store, which has a split for validation."""
    return Validation(Judge.of_recipe(recipes.parse(recipe), Store(store)))
