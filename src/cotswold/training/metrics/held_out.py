"""The metrics of a run over its validation samples, in one process.

Knows: the metrics of a recipe and of a program, samples by index. Does not know: when they are measured,
where a network comes from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from cotswold.data import Store
from cotswold.recipe import Recipe
from cotswold.recipe.schema.strategy import LabelledTraining
from cotswold.training.data.indexed import IndexedSamples
from cotswold.training.losses import Loss
from cotswold.training.metrics.metric_set import MetricSet
from cotswold.training.strategies.base import Batch

_TRIAL = 2
"""Samples of a trial before a run; some layers need more than one."""


def metrics_of(
    recipe: Recipe, loss: Loss, objects: Iterable[object] = (), store: Store | None = None
) -> MetricSet:
    """Return the metrics that a recipe names, and further objects of a program.

    A store with standardised regression targets has errors in the targets' own units.
    """
    training = recipe.training
    names = training.metrics if isinstance(training, LabelledTraining) else []
    scale = None if store is None else store.target_scale
    return MetricSet([*names, *objects], loss, None if scale is None else scale.restored)


@dataclass(frozen=True)
class HeldOutMetrics:
    """Measures metrics of a network on all validation samples.

    The process that calls it needs no state of any other process, so metrics of any kind are exact.

    Args:
        metrics: The metrics.
        samples: The validation samples; None without any.
        batch: Samples per batch.
    """

    metrics: MetricSet
    samples: IndexedSamples | None
    batch: int

    @torch.no_grad()
    def values(self, network: nn.Module) -> dict[str, float]:
        """Return the metrics of a network in evaluation mode, by name; none without samples."""
        if not self.metrics or self.samples is None or not len(self.samples):
            return {}
        self.metrics.reset()
        count = len(self.samples)
        for start in range(0, count, self.batch):
            self._add(network, self.samples.batch(range(start, min(start + self.batch, count))))
        return self.metrics.compute()

    def _add(self, network: nn.Module, batch: Batch) -> None:
        assert batch.targets is not None, "validation samples have targets"
        self.metrics.update(network(batch.inputs), batch.targets)

    @torch.no_grad()
    def check(self, network: nn.Module) -> None:
        """Raise UserError if a metric cannot be measured on the network's outputs.

        For processes whose errors would otherwise be in their own logs.
        """
        if self.metrics and self.samples is not None and len(self.samples):
            is_training = network.training
            with torch.random.fork_rng(devices=[]):
                self._add(network.eval(), self.samples.batch(range(min(_TRIAL, len(self.samples)))))
            self.metrics.reset()
            network.train(is_training)
