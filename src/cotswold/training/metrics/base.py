"""The interface of metrics, and the base classes of the built-in ones.

Knows: how a metric accumulates batches, weights samples and merges states. Does not know: any one metric,
networks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

MetricState = Mapping[str, Tensor]
"""The accumulated values of a metric, as tensors on the CPU."""


@runtime_checkable
class Metric(Protocol):
    """A figure of merit that accumulates over batches.

    Two more abilities are optional. If ``update`` has a parameter ``weight``, it receives the weights of the
    samples ``(sample,)`` where the data set gives them. `MergeableMetric` adds the states of several
    processes.
    """

    def update(self, output: Tensor, target: Tensor) -> None:
        """Add a batch of outputs ``(sample, …)`` and their targets."""

    def compute(self) -> float | Tensor | Mapping[str, object]:
        """Return the value over all batches since the last reset, or several values by name."""
        ...

    def reset(self) -> None:
        """Forget all batches."""


@runtime_checkable
class MergeableMetric(Metric, Protocol):
    """A metric that several processes can accumulate, each over its own batches."""

    def state(self) -> MetricState:
        """Return what was accumulated since the last reset."""
        ...

    def merge(self, states: Sequence[MetricState]) -> None:
        """Replace what was accumulated by the union of states, such as those of all processes."""


class BuiltInMetric(ABC):
    """A metric whose state is tensors by name."""

    def __init__(self) -> None:
        self._state: dict[str, Tensor] = {}

    @abstractmethod
    def update(self, output: Tensor, target: Tensor, weight: Tensor | None = None) -> None:
        """Add a batch of outputs ``(sample, …)`` and targets, with optional weights ``(sample,)``."""

    @abstractmethod
    def compute(self) -> float:
        """Return the value over all batches; NaN without any."""

    @abstractmethod
    def _add(self, state: MetricState) -> None:
        """Add a state to the present one."""

    def reset(self) -> None:
        """Forget all batches."""
        self._state = {}

    def state(self) -> MetricState:
        """Return what was accumulated since the last reset."""
        return dict(self._state)

    def merge(self, states: Sequence[MetricState]) -> None:
        """Replace what was accumulated by the union of states; an empty state adds nothing."""
        self.reset()
        for each in states:
            if each:
                self._add(each)


class SumMetric(BuiltInMetric):
    """A metric that follows from sums over samples."""

    def _add(self, state: MetricState) -> None:
        for name, value in state.items():
            wide = value.detach().cpu().double()
            self._state[name] = self._state[name] + wide if name in self._state else wide


def ratio(numerator: Tensor | None, denominator: Tensor | None) -> float:
    """Return a quotient of sums; NaN if nothing was summed."""
    if numerator is None or denominator is None or not float(denominator):
        return torch.nan
    return float(numerator / denominator)
