"""What a replica computes: the mean loss of a batch by a network that learns, and its gradient.

Knows: networks of recipes, losses, patterns. Does not know: which process this is, which samples are whose,
what becomes of gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from cotswold import recipe as recipes
from cotswold.cluster.work import PortionSum, Slot
from cotswold.data import Store
from cotswold.recipe import Recipe
from cotswold.training.flat import FlatModule
from cotswold.training.losses import Loss, loss_of
from cotswold.training.networks import LayerNetwork
from cotswold.training.patterns import Patterns, StorePatterns
from cotswold.training.restore import supervised_network
from cotswold.training.supervised import needed
from cotswold.training.works import right_of


class LearningWork:
    """The layers of a recipe under a loss, as in training: dropout draws."""

    def __init__(self, network: LayerNetwork, loss: Loss, samples: Patterns) -> None:
        self.network = network.train()
        self.flat = FlatModule(network)
        self._loss, self._samples = loss, samples

    @property
    def parameters(self) -> Tensor:
        """The parameters that learn, one vector."""
        return self.flat.vector

    def lie_in(self, vector: Tensor) -> None:
        """Have the parameters lie in this vector from now on, which gets their values."""
        self.flat.lie_in(vector)

    @property
    def layout(self) -> Sequence[Slot]:
        """The parameters in the vector."""
        return [Slot.of_shape(*each) for each in zip(self.flat.names, self.flat.shapes, strict=True)]

    @property
    def patterns(self) -> int:
        """How many samples there are."""
        return len(self._samples)

    @property
    def flops(self) -> tuple[int, int]:
        """Of one sample, by the network's plan: the value, and the gradient with it."""
        return sum(plan.forward_flops for plan in self.network.plans), self.network.update_flops

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        """Add the gradient of the mean loss, as one step of SGD has it."""
        batch = self._samples.batch(samples)
        targets = needed(batch.targets)
        self.flat.collect(gradient)
        try:
            outputs = self.network(batch.inputs)
            loss = self._loss(outputs, targets)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        finally:
            self.flat.collect(None)
        return PortionSum(float(loss.detach()) * len(targets), len(targets), right_of(outputs, targets))


def in_replica(recipe: str, store: str, rows: str) -> LearningWork:
    """The work of a recipe's text; ``rows``: the folder where `write_rows` has put the samples."""
    parsed, opened = recipes.parse(recipe), Store(store)
    network = supervised_network(parsed, opened.outputs)
    torch.seed()  # what a replica drops is its own
    return LearningWork(network, loss_of(parsed), StorePatterns(opened, "train", Path(rows)))


class Judge:
    """The loss of validation samples at any parameters, by a network of its own."""

    def __init__(self, recipe: Recipe, store: Store) -> None:
        network = supervised_network(recipe, store.outputs)
        self._flat, self._loss = FlatModule(network.eval()), loss_of(recipe)
        self._held = StorePatterns(store, "validation") if store.splits.get("validation") else None
        self._batch = recipe.training.batch_size

    @torch.no_grad()
    def means(self, parameters: Tensor) -> dict[str, float] | None:
        """``loss``, and ``accuracy`` of classes, over all of them; None without any."""
        if self._held is None:
            return None
        self._flat.vector.copy_(parameters)
        count, totals = len(self._held), {"loss": 0.0}
        for start in range(0, count, self._batch):
            batch = self._held.batch(range(start, min(start + self._batch, count)))
            outputs, targets = self._flat.module(batch.inputs), needed(batch.targets)
            totals["loss"] += float(self._loss(outputs, targets)) * len(targets)
            for right in right_of(outputs, targets).values():
                totals["accuracy"] = totals.get("accuracy", 0.0) + right
        return {name: total / count for name, total in totals.items()}
