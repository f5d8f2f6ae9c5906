"""The task of an evaluator process: metrics of parameters on the validation samples.

Knows: recipes, stores. Does not know: which process this is, where parameters come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from cotswold import recipe as recipes
from cotswold.data import Store
from cotswold.errors import StoreError
from cotswold.host import inherited
from cotswold.training.async_sgd.replica_task import Evaluator


class Validation:
    """The evaluation on the validation samples of a store."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator

    def move_to(self, device: torch.device) -> None:
        """Evaluate on this device from now on."""
        self._evaluator.move_to(device)

    def means(self, parameters: Tensor) -> Mapping[str, float]:
        """Return the mean metrics at these parameters; raises StoreError without validation samples."""
        found = self._evaluator.means(parameters)
        if found is None:
            raise StoreError("the store has lost its validation samples; prepare it again")
        return found


def build_evaluation(recipe: str, store: str) -> Validation:
    """Build the evaluation from a recipe's text and the path of its store, which has a validation split."""
    return Validation(Evaluator.from_recipe(recipes.parse(recipe), Store(store)))


INHERITED_METRICS = "metrics"
"""The name of a program's metrics in the processes forked from it."""


def build_evaluation_of_fork(recipe: str, store: str) -> Validation:
    """Build the evaluation as `build_evaluation`, with the metrics of the program that was forked."""
    metrics = cast(tuple[object, ...], inherited(INHERITED_METRICS))  # the parent gave this type
    return Validation(Evaluator.from_recipe(recipes.parse(recipe), Store(store), metrics))
