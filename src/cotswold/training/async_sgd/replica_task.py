"""What a replica computes: the mean loss of a batch by a network that learns, and its gradient.

Knows: networks of recipes, losses, patterns. Does not know: which process this is, which samples are whose,
what becomes of gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import isfinite

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from cotswold import recipe as recipes
from cotswold.data import Store
from cotswold.recipe import Recipe
from cotswold.recipe.schema import DownpourTraining
from cotswold.shards.runtime.work import LEFT_OUT, PortionSum, Slot
from cotswold.training.async_sgd.factors import Factors
from cotswold.training.async_sgd.gradients import Cost, ModuleUpdates, Way
from cotswold.training.async_sgd.push_format import scale_to_norm_1, ways_of
from cotswold.training.data.indexed import DevicePatterns, Patterns, StorePatterns
from cotswold.training.data.remote import ServedPatterns, patterns_of
from cotswold.training.data.varying import varying_of
from cotswold.training.flat_parameters import FlatModule
from cotswold.training.jobs.restore import supervised_network
from cotswold.training.losses import Loss, loss_of
from cotswold.training.models import LayerNetwork
from cotswold.training.nonfinite_loss import check_finite
from cotswold.training.scores import Scores, score
from cotswold.training.strategies.supervised import needed
from cotswold.wire import Shard

FIRST = 2
"""Samples on which a module is tried: some layers want more than one."""


class LearningWork:
    """Any module under a loss, as in training: dropout draws.

    Some layers' gradients come as factors (`FactoringWork`), once it has heard where rows lie.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: Loss,
        samples: Patterns,
        flops: tuple[int, int] | None,
        ways: Mapping[str, Way] | None = None,
        decay: float = 0.0,
        clip: float | None = None,
    ) -> None:
        """``flops``: of one sample, the value, and the gradient with it, where they are known; ``ways``: as
        for `ModuleUpdates`; ``decay``: this times a weight is added to its gradient; ``clip``: the greatest
        norm of a batch's gradient without that."""
        self.network, self._flops = network.train(), flops
        self.flat = FlatModule(network)
        self.decay = decay
        self._updates = ModuleUpdates(self.flat, ways)
        self._loss, self._samples = loss, samples
        self._fed = samples if isinstance(samples, ServedPatterns) else None
        self._clip = clip
        self._batch: Tensor | None = None
        """The gradient of one batch, where it is clipped."""

    @property
    def parameters(self) -> Tensor:
        """The parameters that learn, one vector."""
        return self.flat.vector

    def lie_in(self, vector: Tensor) -> None:
        """Have the parameters lie in this vector from now on, which gets their values."""
        self.flat.lie_in(vector)

    def move_to(self, device: torch.device) -> None:
        """Compute on this device from now on, where the parameters are then: another vector than before."""
        self.flat.move_to(device)
        self._samples = DevicePatterns(self._samples, device)

    @property
    def layout(self) -> Sequence[Slot]:
        """The parameters in the vector."""
        return self._updates.layout

    @property
    def patterns(self) -> int:
        """How many samples there are."""
        return len(self._samples)

    @property
    def varies(self) -> bool:
        """Whether a sample is another one in each epoch."""
        return self._samples.varies

    @property
    def fed(self) -> ServedPatterns | None:
        """What asks data servers for samples, where they make them."""
        return self._fed

    def read_from(self, samples: Patterns) -> None:
        """Learn from these samples from now on, which somebody else asks for."""
        self._samples, self._fed = samples, None

    @property
    def is_fed(self) -> bool:
        """Whether data servers make the samples."""
        return self._fed is not None

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """As `FedWork.expect`; nothing is asked for where samples are at hand."""
        if self._fed is not None:
            self._fed.expect(batches)

    @property
    def is_starved(self) -> bool:
        """Whether it waits for samples now."""
        return self._fed is not None and self._fed.is_starved

    @cached_property
    def flops(self) -> tuple[int, int]:
        """Of one sample, the value, and the gradient with it: as they were given, or as torch counts them on
        the first samples, by a copy of the module."""
        if self._flops is not None:
            return self._flops
        batch = self._samples.batch(range(min(FIRST, len(self._samples))))
        targets = needed(batch.targets)
        with FlopCounterMode(display=False) as forward:
            value = self._loss(copy.deepcopy(self.network)(batch.inputs), targets)
        with FlopCounterMode(display=False) as backward:
            value.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        counts = [each.get_total_flops() // len(targets) for each in (forward, backward)]
        return counts[0], sum(counts)

    @property
    def costs(self) -> Mapping[str, Cost]:
        """What pushing the weights of each layer costs that could go as factors and is not told how, by the
        layer's name; after a batch."""
        return self._updates.costs

    def lay(self, shards: Sequence[Shard], samples: int) -> None:
        """Where rows lie, and how many samples make a push: what is pushed as factors follows from it."""
        self._updates.lay(shards, samples)

    @property
    def gives_factors(self) -> bool:
        """Whether some layer is pushed as factors, as far as a batch has shown."""
        return bool(self._updates.factored)

    def take_factors(self) -> Mapping[str, Factors]:
        """Those since they were taken last, by tensor."""
        return self._updates.take()

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        """Add the gradient of the mean loss, as one step of SGD has it."""
        batch = self._samples.batch(samples)
        targets, sums = needed(batch.targets), dict[str, float]()

        def loss() -> Tensor:
            outputs = self.network(batch.inputs)
            sums.update(score(self._loss, outputs, targets).sums)
            return self._loss(outputs, targets)

        if self._clip is None:
            value = self._updates.of_batch(loss, len(targets), gradient)
        else:
            own = self._batch = torch.zeros_like(gradient) if self._batch is None else self._batch.zero_()
            value = self._updates.of_batch(loss, len(targets), own)
            self._updates.clip(own, self._clip)
            gradient += own
        if self.decay:
            self._decay(gradient)
        if not isfinite(value):
            check_finite(batch)
        return PortionSum(value * (len(targets) - sums.get(LEFT_OUT, 0.0)), len(targets), sums)

    def _decay(self, gradient: Tensor) -> None:
        """Of all but the weights whose factors somebody else multiplies."""
        factored = self._updates.factored
        if not factored:
            gradient.add_(self.flat.vector, alpha=self.decay)
            return
        weights = self.flat.named(self.flat.vector)
        for name, part in self.flat.named(gradient).items():
            if name not in factored:
                part.add_(weights[name], alpha=self.decay)


def in_replica(recipe: str, store: str, rows: str, pool: str | None = None) -> LearningWork:
    """The work of a recipe's text; ``rows``: the folder where `write_rows` has put the samples; ``pool``:
    the `PoolPlace` of data servers that make them instead."""
    parsed, opened = recipes.parse(recipe), Store(store)
    training = parsed.training
    assert isinstance(training, DownpourTraining), "the table chose by the strategy"
    network = supervised_network(parsed, opened.outputs)
    if training.unit_norm:
        scale_to_norm_1(network)
    torch.seed()  # what a replica drops is its own
    varying = varying_of(parsed, opened)
    samples = patterns_of(opened, varying, training.seed, rows, pool)
    ways, decay = ways_of(network, training), training.weight_decay
    return LearningWork(network, loss_of(parsed), samples, flops_of(network), ways, decay, training.clip)


def flops_of(network: LayerNetwork) -> tuple[int, int]:
    """Of one sample, by the network's plan: the value, and the gradient with it."""
    return sum(plan.forward_flops for plan in network.plans), network.update_flops


class Judge:
    """The loss of validation samples at any parameters, by a network of its own."""

    def __init__(self, network: nn.Module, loss: Loss, held: Patterns | None, batch: int) -> None:
        """``network``: is put into evaluation; ``held``: the samples, if there are any; ``batch``: how many
        at a time."""
        self._flat, self._loss = FlatModule(network.eval()), loss
        self._held, self._batch = held, batch

    @classmethod
    def of_recipe(cls, recipe: Recipe, store: Store) -> Judge:
        """The layers of a recipe on its store."""
        held = StorePatterns(store, "validation") if store.splits.get("validation") else None
        network = supervised_network(recipe, store.outputs)
        return cls(network, loss_of(recipe), held, recipe.training.batch_size)

    def move_to(self, device: torch.device) -> None:
        """Judge on this device from now on."""
        self._flat.move_to(device)
        self._held = None if self._held is None else DevicePatterns(self._held, device)

    @torch.no_grad()
    def means(self, parameters: Tensor) -> dict[str, float] | None:
        """``loss``, and ``accuracy`` of classes, over all of them; None without any."""
        if self._held is None:
            return None
        self._flat.vector.copy_(parameters)
        count, scores = len(self._held), Scores()
        for start in range(0, count, self._batch):
            batch = self._held.batch(range(start, min(start + self._batch, count)))
            outputs, targets = self._flat.module(batch.inputs), needed(batch.targets)
            scores.add(float(self._loss(outputs, targets)), score(self._loss, outputs, targets))
        return scores.means()
