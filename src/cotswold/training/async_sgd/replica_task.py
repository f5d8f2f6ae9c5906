"""The task of a replica: the mean loss of a batch in training mode, and its gradient.

Knows: networks of recipes, losses, samples. Does not know: which process this is, which samples belong to
which replica, how gradients are used.
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
from cotswold.shards.runtime.work import LEFT_OUT, PortionSum, TensorSlot
from cotswold.training.async_sgd.factors import Factors
from cotswold.training.async_sgd.gradients import Cost, ModuleUpdates, PushFormat
from cotswold.training.async_sgd.push_format import push_formats, scale_to_norm_1
from cotswold.training.data.augmentation import augmentation_of
from cotswold.training.data.indexed import DeviceSamples, IndexedSamples, StoreSamples
from cotswold.training.data.remote import RemoteSamples, worker_samples
from cotswold.training.flat_parameters import FlatParameters
from cotswold.training.jobs.restore import supervised_network
from cotswold.training.losses import Loss, loss_of, loss_on
from cotswold.training.metrics.held_out import metrics_of
from cotswold.training.metrics.metric_set import MetricSet
from cotswold.training.models import LayerNetwork
from cotswold.training.nonfinite_loss import check_finite
from cotswold.training.scores import Scores, score
from cotswold.training.strategies.supervised import require_targets
from cotswold.wire import Shard

FIRST = 2
"""Samples of a first run of a module; some layers need more than one."""


class ReplicaTask:
    """Any module with a loss, in training mode with dropout.

    Once the shards are known, the gradients of some layers are factors (`FactoringWork`).
    """

    def __init__(
        self,
        network: nn.Module,
        loss: Loss,
        samples: IndexedSamples,
        flops: tuple[int, int] | None,
        push_formats: Mapping[str, PushFormat] | None = None,
        decay: float = 0.0,
        clip: float | None = None,
    ) -> None:
        """Keep a module with its loss and samples.

        ``flops`` per sample are for the value, and for value and gradient; None counts them. ``push_formats``
        is as for `ModuleUpdates`. ``decay`` times a weight is added to its gradient. ``clip`` is
        the maximum norm of a batch's gradient before weight decay.
        """
        self.network, self._flops = network.train(), flops
        self.flat = FlatParameters(network)
        self.decay = decay
        self._updates = ModuleUpdates(self.flat, push_formats)
        self._loss, self._samples = loss, samples
        self._fed = samples if isinstance(samples, RemoteSamples) else None
        self._clip = clip
        self._batch: Tensor | None = None
        """The gradient of one batch, if it is clipped."""

    @property
    def parameters(self) -> Tensor:
        """The trainable parameters, as one vector."""
        return self.flat.vector

    def bind_parameters(self, vector: Tensor) -> None:
        """Move the parameters and their values into this vector."""
        self.flat.rebind(vector)

    def move_to(self, device: torch.device) -> None:
        """Move computation and parameters to this device, the latter into a new vector."""
        self.flat.move_to(device)
        self._loss = loss_on(self._loss, device)
        self._samples = DeviceSamples(self._samples, device)

    @property
    def layout(self) -> Sequence[TensorSlot]:
        """The parameters' positions in the vector."""
        return self._updates.layout

    @property
    def samples(self) -> int:
        """The number of samples."""
        return len(self._samples)

    @property
    def varies(self) -> bool:
        """True if samples are augmented differently in each epoch."""
        return self._samples.is_augmented

    @property
    def remote_samples(self) -> RemoteSamples | None:
        """The remote samples, if data servers make them."""
        return self._fed

    def read_from(self, samples: IndexedSamples) -> None:
        """Use these samples from now on, which another process requests."""
        self._samples, self._fed = samples, None

    @property
    def is_fed(self) -> bool:
        """True if data servers make the samples."""
        return self._fed is not None

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """Prefetch batches, as `FedWork.expect`; local samples need no request."""
        if self._fed is not None:
            self._fed.expect(batches)

    @property
    def is_starved(self) -> bool:
        """True while it waits for samples."""
        return self._fed is not None and self._fed.is_starved

    @cached_property
    def flops(self) -> tuple[int, int]:
        """FLOPs per sample of value alone, and of value and gradient.

        Without given values, torch counts them on the first samples with a copy of the module.
        """
        if self._flops is not None:
            return self._flops
        batch = self._samples.batch(range(min(FIRST, len(self._samples))))
        targets = require_targets(batch.targets)
        with FlopCounterMode(display=False) as forward:
            value = self._loss(copy.deepcopy(self.network)(batch.inputs), targets)
        with FlopCounterMode(display=False) as backward:
            value.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        counts = [each.get_total_flops() // len(targets) for each in (forward, backward)]
        return counts[0], sum(counts)

    @property
    def costs(self) -> Mapping[str, Cost]:
        """The push costs of layers with factors and no fixed format, by layer name; known after a batch."""
        return self._updates.costs

    def lay(self, shards: Sequence[Shard], samples: int) -> None:
        """Set the shards and the samples of a push, which decide the push formats."""
        self._updates.lay(shards, samples)

    @property
    def gives_factors(self) -> bool:
        """True if some layer is known to be pushed as factors."""
        return bool(self._updates.factored)

    def take_factors(self) -> Mapping[str, Factors]:
        """Return the factors since the last call, by tensor."""
        return self._updates.take()

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        """Add the gradient of the mean loss, as in one step of SGD."""
        batch = self._samples.batch(samples)
        targets, sums = require_targets(batch.targets), dict[str, float]()

        def loss() -> Tensor:
            outputs = self.network(batch.inputs)
            sums.update(score(self._loss, outputs, targets).sums)
            return self._loss(outputs, targets)

        if self._clip is None:
            value = self._updates.compute_loss(loss, len(targets), gradient)
        else:
            own = self._batch = torch.zeros_like(gradient) if self._batch is None else self._batch.zero_()
            value = self._updates.compute_loss(loss, len(targets), own)
            self._updates.clip(own, self._clip)
            gradient += own
        if self.decay:
            self._decay(gradient)
        if not isfinite(value):
            check_finite(batch)
        return PortionSum(value * (len(targets) - sums.get(LEFT_OUT, 0.0)), len(targets), sums)

    def _decay(self, gradient: Tensor) -> None:
        """Add weight decay, except for the weights whose factors a server multiplies."""
        factored = self._updates.factored
        if not factored:
            gradient.add_(self.flat.vector, alpha=self.decay)
            return
        weights = self.flat.by_name(self.flat.vector)
        for name, part in self.flat.by_name(gradient).items():
            if name not in factored:
                part.add_(weights[name], alpha=self.decay)


def build_replica_task(recipe: str, store: str, rows: str, pool: str | None = None) -> ReplicaTask:
    """Build the task of a recipe's text.

    ``rows`` is a folder with samples from `write_rows`; ``pool`` is instead the `PoolLocation` of data
    servers.
    """
    parsed, opened = recipes.parse(recipe), Store(store)
    training = parsed.training
    assert isinstance(training, DownpourTraining), "the registry selects by strategy"
    network = supervised_network(parsed, opened.outputs)
    if training.unit_norm:
        scale_to_norm_1(network)
    torch.seed()  # dropout differs between replicas
    augmentation = augmentation_of(parsed, opened)
    samples = worker_samples(opened, augmentation, training.seed, rows, pool)
    ways, decay = push_formats(network, training), training.weight_decay
    return ReplicaTask(network, loss_of(parsed), samples, flops_of(network), ways, decay, training.clip_norm)


def flops_of(network: LayerNetwork) -> tuple[int, int]:
    """Return FLOPs per sample by the network's plan: of value alone, and of value and gradient."""
    return sum(plan.forward_flops for plan in network.plans), network.update_flops


class Evaluator:
    """The evaluator's network, and its loss and metrics on validation samples at any parameters."""

    def __init__(
        self,
        network: nn.Module,
        loss: Loss,
        held: IndexedSamples | None,
        batch: int,
        metrics: MetricSet | None = None,
    ) -> None:
        """``network`` enters evaluation mode; ``held`` are the validation samples; ``batch`` is the batch
        size.
        """
        self._metrics = MetricSet((), loss) if metrics is None else metrics
        self._flat, self._loss = FlatParameters(network.eval()), loss
        self._held, self._batch = held, batch

    @classmethod
    def from_recipe(cls, recipe: Recipe, store: Store, metrics: Sequence[object] = ()) -> Evaluator:
        """Return the evaluator of a recipe's layers on its store, with further metrics."""
        held = StoreSamples(store, "validation") if store.splits.get("validation") else None
        network = supervised_network(recipe, store.outputs)
        loss = loss_of(recipe)
        measured = metrics_of(recipe, loss, metrics, store)
        return cls(network, loss, held, recipe.training.batch_size, measured)

    def move_to(self, device: torch.device) -> None:
        """Evaluate on this device from now on."""
        self._flat.move_to(device)
        self._loss = loss_on(self._loss, device)
        self._held = None if self._held is None else DeviceSamples(self._held, device)

    @torch.no_grad()
    def means(self, parameters: Tensor) -> dict[str, float] | None:
        """Return the mean ``loss``, ``accuracy`` of classes, and metrics, over all samples.

        None without samples.
        """
        if self._held is None:
            return None
        self._flat.vector.copy_(parameters)
        count, scores = len(self._held), Scores()
        self._metrics.reset()
        for start in range(0, count, self._batch):
            batch = self._held.batch(range(start, min(start + self._batch, count)))
            outputs, targets = self._flat.module(batch.inputs), require_targets(batch.targets)
            scores.add(float(self._loss(outputs, targets)), score(self._loss, outputs, targets))
            self._metrics.update(outputs, targets)
        means = scores.means()
        return means if means is None else {**means, **self._metrics.compute()}
