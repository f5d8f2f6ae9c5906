"""Training with the settings of a mapping.

Knows: the strategy objects and their fields. Does not know: what is trained.
"""

from __future__ import annotations

import inspect
from typing import Any

import cotswold
from cotswold.recipe.strategies import STRATEGY_OBJECTS

ARGUMENTS = set(inspect.signature(cotswold.train).parameters)


def train_with(module: Any, dataset: Any = None, **words: Any) -> cotswold.Run:
    """Call `cotswold.train`; words that are not its arguments are fields of the strategy."""
    strategy = words.get("strategy")
    fields = {name: words.pop(name) for name in [*words] if name not in ARGUMENTS}
    if fields and not isinstance(strategy, cotswold.recipe.strategies.StrategyObject):
        words["strategy"] = STRATEGY_OBJECTS[strategy or "supervised"](**fields)
    return cotswold.train(module, dataset, **words)
