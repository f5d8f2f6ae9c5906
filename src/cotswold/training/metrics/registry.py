"""The metrics with a name, and how any metric is made from what a recipe or a program gives.

Knows: names, and the interface of objects. Does not know: what a metric computes, when it is measured.

A new metric is a class in a module of this package, and a line in `METRICS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import count

from torch import nn

from cotswold.errors import RecipeError, UserError
from cotswold.training.metrics.base import Metric
from cotswold.training.metrics.classes import Accuracy, MacroF1, MacroPrecision, MacroRecall, TopAccuracy
from cotswold.training.metrics.function_metric import BatchFunction, FunctionMetric
from cotswold.training.metrics.numbers import ExplainedVariance, MeanAbsoluteError, RootMeanSquaredError
from cotswold.training.metrics.ranking import AreaUnderRoc

METRICS: Mapping[str, Callable[[], Metric]] = {
    "accuracy": Accuracy,
    "auroc": AreaUnderRoc,
    "macro_f1": MacroF1,
    "macro_precision": MacroPrecision,
    "macro_recall": MacroRecall,
    "mae": MeanAbsoluteError,
    "r2": ExplainedVariance,
    "rmse": RootMeanSquaredError,
}
"""The metrics by name, besides ``topK``."""
_TOP = re.compile(r"top([1-9]\d{0,8})")
MetricSource = str | Metric | BatchFunction
"""The name of a metric, an object with the interface, or a function of the outputs and targets of a batch."""
RESERVED = frozenset(
    {
        *("kind", "time", "seconds", "phase", "step", "phase_step", "loss", "samples", "flops"),
        *("evaluations", "training_seconds", "validation_seconds"),
    }
)
"""The other fields of a `validation` event."""


def metric_by_name(name: str) -> Metric:
    """Return a new metric; raises RecipeError for an unknown name.

    >>> type(metric_by_name("top5")).__name__
    'TopAccuracy'
    """
    if name in METRICS:
        return METRICS[name]()
    if found := _TOP.fullmatch(name):
        return TopAccuracy(int(found[1]))
    close = get_close_matches(name, [*METRICS, "top5"], n=1, cutoff=0.4)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise RecipeError(
        f"unknown metric {name!r:.80}{hint}. The metrics are {', '.join(METRICS)} and top5 (any k)"
    )


def check_metrics(given: Iterable[object]) -> None:
    """Raise RecipeError or UserError for metrics that cannot be made."""
    named_metrics(given)


def named_metrics(given: Iterable[object]) -> dict[str, Metric]:
    """Return metrics by the names under which a run records them; names of built-in metrics give new objects.

    An object is recorded by its attribute ``name``, or by its class; a second one of a name gets a number.
    """
    found: dict[str, Metric] = {}
    for each in given:
        if isinstance(each, str):
            found.setdefault(each, metric_by_name(each))
            continue
        metric, own = _of_object(each)
        name = next(name for name in _numbered(own) if name not in found)
        if name in RESERVED:
            raise UserError(
                f"a metric cannot have the name {name}, which is another field of a validation event; give "
                "it another name"
            )
        found[name] = metric
    return found


def _numbered(name: str) -> Iterator[str]:
    """Yield a name, then the name with a number from 2."""
    yield name
    yield from (f"{name}_{number}" for number in count(2))


def _of_object(given: object) -> tuple[Metric, str]:
    if isinstance(given, type):
        raise UserError(f"the metric {given.__name__} is a class; give an object: {given.__name__}()")
    own = getattr(given, "name", None)
    if isinstance(given, Metric):
        return given, own if isinstance(own, str) and own else type(given).__name__
    if callable(given) and not isinstance(given, nn.Module):
        name = getattr(given, "__name__", type(given).__name__).strip("<>")
        return FunctionMetric(given), own if isinstance(own, str) and own else name
    raise UserError(
        f"{given!r:.80} is not a metric; give a name, an object with update, compute and reset, or a "
        "function of (output, target) that returns a number"
    )
