"""The check of metrics and loggers before a run exists.

Knows: the names that `[training]` gives. Does not know: what a metric computes, what a logger writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotswold.data import Store
from cotswold.errors import UserError
from cotswold.recipe.schema import SharedTraining
from cotswold.recipe.schema.strategy import LabelledTraining
from cotswold.run.loggers.registry import check_loggers
from cotswold.training.metrics.registry import check_metrics


def check_outputs(training: SharedTraining) -> None:
    """Raise RecipeError for an unknown metric or logger, MissingExtraError if its package is missing."""
    if isinstance(training, LabelledTraining):
        check_metrics(training.metrics)
    check_loggers(training.loggers or ())


def check_metric_objects(metrics: Sequence[object], training: SharedTraining, store: Store) -> None:
    """Raise UserError if a program's metrics cannot be made, or would never be measured."""
    check_metrics(metrics)
    if metrics and not isinstance(training, LabelledTraining):
        raise UserError(
            f"strategy {training.strategy} trains without labels, so there is nothing to measure metrics "
            "against; omit metrics"
        )
    if metrics and not store.splits.get("validation"):
        raise UserError(
            f"metrics are measured on validation samples, but {store.path} has none; set data.validation, or "
            "omit metrics"
        )
