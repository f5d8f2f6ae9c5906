"""`[training]` and `[objective]`: how to train, and the function to minimise; one class per `strategy`.

Knows: the fields of each strategy. Does not know: what a strategy does with them.

A strategy is a class with its name as the literal type of ``strategy``, listed in the union `Training`; its
objective is a class in the union `Objective`. A strategy of another package derives its section from one of
these classes and registers by an entry point (`recipe.plugins`).
"""

from __future__ import annotations

from typing import Annotated, get_args

from pydantic import Discriminator, Field, Tag

from cotswold.recipe.schema.async_sgd import DownpourTraining as DownpourTraining
from cotswold.recipe.schema.fields import (
    Section,
)
from cotswold.recipe.schema.full_batch import BatchTraining as BatchTraining
from cotswold.recipe.schema.stacks import GreedyTraining as GreedyTraining
from cotswold.recipe.schema.stacks import JointTraining as JointTraining
from cotswold.recipe.schema.stacks import StackTraining as StackTraining
from cotswold.recipe.schema.strategy import LossObjective as LossObjective
from cotswold.recipe.schema.strategy import SharedTraining as SharedTraining
from cotswold.recipe.schema.strategy import StackObjective as StackObjective
from cotswold.recipe.schema.strategy import SteppedTraining as SteppedTraining
from cotswold.recipe.schema.supervised import SupervisedTraining as SupervisedTraining

LayerTraining = SupervisedTraining | BatchTraining | DownpourTraining
"""Strategies that train layers, or a Python module."""
Training = Annotated[
    GreedyTraining | JointTraining | SupervisedTraining | BatchTraining | DownpourTraining,
    Field(discriminator="strategy"),
]
"""Union of all strategies."""
STRATEGIES: list[type[SharedTraining]] = [
    GreedyTraining,
    JointTraining,
    SupervisedTraining,
    BatchTraining,
    DownpourTraining,
]
"""All strategies; other packages register theirs (`recipe.plugins`)."""


class OfStrategy(dict[str, object]):
    """Values of `[objective]`, with the class that the recipe's strategy needs."""

    def __init__(self, values: dict[str, object], section: type[Section]) -> None:
        super().__init__(values)
        self.section = section


def _class_of(values: object) -> str:
    section = values.section if isinstance(values, OfStrategy) else type(values)
    return section.__name__ if issubclass(section, Section) else StackObjective.__name__


Objective = Annotated[
    Annotated[StackObjective, Tag("StackObjective")] | Annotated[LossObjective, Tag("LossObjective")],
    Discriminator(_class_of),
]
"""Union of the objectives; the strategy determines which one."""


def strategy_of(training: object) -> type[SharedTraining] | None:
    """Return the class of a `[training]`, given as values or validated; None if the strategy is unknown."""
    if isinstance(training, SharedTraining):
        return type(training)
    name = training.get("strategy") if isinstance(training, dict) else None
    return next((each for each in STRATEGIES if name in names_of(each)), None)


def names_of(strategy: type[SharedTraining]) -> tuple[object, ...]:
    """Return the names that `strategy` accepts for a class."""
    return get_args(strategy.model_fields["strategy"].annotation)
