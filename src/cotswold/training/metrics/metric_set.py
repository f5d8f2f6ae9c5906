"""The metrics of a validation: all of them over the same batches.

Knows: which targets count, detectors, units of targets, errors of a user's metric. Does not know: where
batches come from, what any one metric computes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cotswold.errors import CotswoldError, UserError, describe_exception
from cotswold.training.losses import Loss, counted_mask, is_classes, is_detector
from cotswold.training.metrics.base import BuiltInMetric, MergeableMetric, Metric
from cotswold.training.metrics.function_metric import FunctionMetric
from cotswold.training.metrics.registry import RESERVED, named_metrics

MetricSetState = Mapping[str, Any]
"""The state of each metric, by name."""


class MetricSet:
    """Accumulates several metrics, and returns their values by name.

    Targets that the loss ignores are left out. Dense targets (a class for each position) keep their shape for
    objects of a program, which then receive ignored targets too.

    Args:
        given: Names, objects and functions, as `registry.MetricSource`.
        loss: The loss, which decides the targets that count.
        units: Converts outputs and targets to the targets' own units; None if they have them.
    """

    def __init__(
        self, given: Iterable[object], loss: Loss, units: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self._metrics = named_metrics(given)
        self._loss, self._units = loss, units
        self._weighted = {name for name, each in self._metrics.items() if _takes_weight(each)}

    def __bool__(self) -> bool:
        return bool(self._metrics)

    @property
    def can_merge(self) -> bool:
        """True if processes can each validate a part of the samples, and merge their states."""
        return all(isinstance(each, MergeableMetric) or _adds_states(each) for each in self._metrics.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return tuple(self._metrics)

    def reset(self) -> None:
        """Forget all batches."""
        for name, metric in self._metrics.items():
            with _explained(name):
                metric.reset()

    @torch.no_grad()
    def update(self, outputs: object, targets: Tensor, weights: Tensor | None = None) -> None:
        """Add a batch; raises UserError if a metric cannot use outputs and targets of these shapes."""
        if not self._metrics:
            return
        raw = outputs.detach() if isinstance(outputs, Tensor) else outputs
        weights = None if weights is None else weights.reshape(-1)
        for name, metric in self._metrics.items():
            with _explained(name, raw, targets):
                if isinstance(metric, BuiltInMetric) and not isinstance(metric, FunctionMetric):
                    metric.update(*self._positions(raw, targets, weights))
                else:
                    self._update_object(name, metric, raw, targets, weights)

    def _positions(
        self, outputs: object, targets: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return what a built-in metric receives: a detector as two classes, counted positions, own units."""
        if not isinstance(outputs, Tensor):
            raise UserError(f"the module returned a {type(outputs).__name__}, but it needs a tensor")
        is_one = is_detector(self._loss) and outputs.numel() == targets.numel() == len(targets)
        if is_one and not bool(((targets != 0) & (targets != 1)).any()):
            scores = outputs.reshape(-1, 1)
            return torch.cat([torch.zeros_like(scores), scores], 1), targets.reshape(-1).long(), weights
        if is_classes(outputs, targets):
            mask = counted_mask(self._loss, targets)
            if not bool(mask.all()):
                if weights is not None:
                    weights = weights.reshape(-1, *(1 for _ in targets.shape[1:])).expand(mask.shape)[mask]
                return outputs.movedim(1, -1)[mask], targets[mask], weights
        elif self._units is not None and outputs.shape == targets.shape:
            return self._units(outputs), self._units(targets), weights
        return outputs, targets, weights

    def _update_object(
        self, name: str, metric: Metric, outputs: Any, targets: Tensor, weights: Tensor | None
    ) -> None:
        if is_classes(outputs, targets) and targets.dim() == 1:
            mask = counted_mask(self._loss, targets)
            if not bool(mask.all()):
                outputs, targets = outputs[mask], targets[mask]
                weights = None if weights is None else weights[mask]
            if not len(targets):
                return
        elif self._units is not None and isinstance(outputs, Tensor) and outputs.shape == targets.shape:
            outputs, targets = self._units(outputs), self._units(targets)
        if isinstance(metric, nn.Module):  # torchmetrics keeps its state on a device
            metric.to(targets.device)
        more: dict[str, Any] = {} if weights is None or name not in self._weighted else {"weight": weights}
        metric.update(outputs, targets, **more)

    def compute(self) -> dict[str, float]:
        """Return the values over all batches since the last reset, by name."""
        found: dict[str, float] = {}
        for name, metric in self._metrics.items():
            with _explained(name), _local_values(metric):
                value = metric.compute()
                values = value if isinstance(value, Mapping) else {name: value}
                for key, each in values.items():
                    found[_checked(str(key))] = _number(each)
        return found

    def state(self) -> MetricSetState:
        """Return the state of every metric, for `merge` in another process."""
        return {name: _state(name, metric) for name, metric in self._metrics.items()}

    def merge(self, states: Sequence[MetricSetState]) -> None:
        """Replace what was accumulated by the union of several processes' states, this one's included."""
        for name, metric in self._metrics.items():
            parts = [each[name] for each in states]
            with _explained(name):
                if isinstance(metric, MergeableMetric):
                    metric.merge(parts)
                else:
                    theirs: Any = metric  # a metric of torchmetrics; `_state` refuses others
                    theirs.to("cpu").reset()  # as the states of other processes
                    for part, count in parts:
                        theirs.merge_state(part)
                        theirs._update_count += count


def _state(name: str, metric: Metric) -> object:
    if isinstance(metric, MergeableMetric):
        return metric.state()
    if _adds_states(metric):
        theirs: Any = metric
        return dict(theirs.metric_state), theirs._update_count
    raise UserError(
        f"the metric {name} cannot be measured by several processes; add state(), which returns tensors by "
        "name, and merge(states)"
    )


_ADDED = {f"dim_zero_{name}" for name in ("sum", "cat", "max", "min")}
"""The reductions of torchmetrics with which states of any number of processes merge."""


def _adds_states(metric: object) -> bool:
    """Return True if the states of a metric of torchmetrics merge exactly; wrappers of metrics do not."""
    if not hasattr(metric, "merge_state") or not isinstance(metric, nn.Module) or [*metric.children()]:
        return False
    reductions = getattr(metric, "_reductions", {None: None}).values()
    return getattr(metric, "full_state_update", None) is False and all(
        getattr(each, "__name__", "") in _ADDED for each in reductions
    )


@contextmanager
def _local_values(metric: object) -> Iterator[None]:
    """Keep torchmetrics from adding the states of all ranks, which are the same or merged, in a block."""
    synchronised: list[Any] = [
        each
        for each in (metric.modules() if isinstance(metric, nn.Module) else ())
        if hasattr(each, "distributed_available_fn")
    ]
    kept = [each.distributed_available_fn for each in synchronised]
    try:
        for each in synchronised:
            each.distributed_available_fn = bool  # False
        yield
    finally:
        for each, function in zip(synchronised, kept, strict=True):
            each.distributed_available_fn = function


def _takes_weight(metric: Metric) -> bool:
    try:
        parameters = inspect.signature(metric.update).parameters
    except (TypeError, ValueError):
        return False
    return "weight" in list(parameters)[2:]


def _checked(name: str) -> str:
    if name in RESERVED:
        raise UserError(f"it returned a value called {name}, which is another field of a validation event")
    return name


def _number(value: object) -> float:
    if isinstance(value, Tensor) and value.numel() != 1:
        raise UserError(f"compute returned a tensor of shape {tuple(value.shape)}; return one number")
    try:
        return float(value)  # type: ignore[arg-type]  # any number
    except (TypeError, ValueError):
        raise UserError(f"compute returned a {type(value).__name__}; return one number") from None


@contextmanager
def _explained(name: str, outputs: object = None, targets: Tensor | None = None) -> Iterator[None]:
    """Replace an error of a metric by a UserError with its name and the shapes."""
    try:
        yield
    except (CotswoldError, MemoryError) as error:
        if isinstance(error, UserError) and not str(error).startswith("the metric"):
            raise UserError(f"the metric {name} cannot be measured: {error}") from error
        raise
    except Exception as error:  # any exception is the metric's
        shapes = "" if targets is None else f" on outputs {_shape(outputs)} and targets {_shape(targets)}"
        raise UserError(
            f"the metric {name} failed{shapes} ({describe_exception(error)}); use a metric for such outputs "
            "and targets"
        ) from error


def _shape(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"of type {type(value).__name__}"
    return f"of shape {tuple(value.shape)} and {str(value.dtype).removeprefix('torch.')}"
