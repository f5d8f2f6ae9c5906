"""The objective of a worker: the sum of a network's losses over samples, and its gradient.

Knows: networks of recipes and of programs, losses, samples. Does not know: which process this is, who asks,
how sums are added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import cast, get_args

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from cotswold import recipe as recipes
from cotswold.data import Store
from cotswold.errors import UserError
from cotswold.host import Token, inherited
from cotswold.nn import DenseNetwork
from cotswold.ops.dense import DenseActivation, DenseLoss, DenseOutput
from cotswold.processes.device import compute_on
from cotswold.recipe import Recipe
from cotswold.recipe.schema import BatchTraining, Linear, LossObjective
from cotswold.shards.runtime.work import PortionSum, TensorSlot
from cotswold.training.data.indexed import IndexedSamples, StoreSamples
from cotswold.training.data.remote import CachedSamples, PoolLocation, RemoteSamples, WorkerSamples
from cotswold.training.devices import with_cpu_device
from cotswold.training.flat_parameters import FlatParameters
from cotswold.training.full_batch.objective_checks import check_steady
from cotswold.training.jobs.restore import supervised_network
from cotswold.training.losses import Loss, counted_mask, is_sum, loss_of
from cotswold.training.models import LayerNetwork
from cotswold.training.nonfinite_loss import check_finite
from cotswold.training.scores import score
from cotswold.training.strategies.base import Batch
from cotswold.training.strategies.supervised import require_targets


class ModuleObjective:
    """Any module with a loss, by autograd; its trainable parameters are one vector.

    The module computes in evaluation mode, so that the objective is one fixed function of the parameters. Its
    buffers stay unchanged. On a device a copy of the module computes; parameters and gradients stay in this
    process's memory and are copied once per portion.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        samples: IndexedSamples,
        held: IndexedSamples | None,
    ) -> None:
        """``held`` are the validation samples."""
        check_steady(module)
        self.flat = self._computing = FlatParameters(module.eval())
        self._loss, self._samples = loss, samples
        self._held = held if held is not None and len(held) else None

    @property
    def held(self) -> IndexedSamples | None:
        """The validation samples; None without any."""
        return self._held

    @property
    def network(self) -> nn.Module:
        """The module."""
        return self.flat.module

    @property
    def parameters(self) -> Tensor:
        """The trainable parameters, as one vector."""
        return self.flat.vector

    @property
    def layout(self) -> Sequence[TensorSlot]:
        """The parameters' positions in the vector."""
        return [TensorSlot.of_shape(*each) for each in zip(self.flat.names, self.flat.shapes, strict=True)]

    @property
    def samples(self) -> int:
        """The number of training samples."""
        return len(self._samples)

    @property
    def varies(self) -> bool:
        """True if samples are augmented differently in each epoch."""
        return self._samples.is_augmented

    @property
    def is_fed(self) -> bool:
        """True if data servers make the samples."""
        return isinstance(self._samples, WorkerSamples)

    def expect(self, batches: Sequence[Sequence[int]]) -> None:
        """Prefetch batches, as `FedWork.expect`; local samples need no request."""
        if isinstance(self._samples, WorkerSamples):
            self._samples.expect(batches)

    @property
    def is_starved(self) -> bool:
        """True while it waits for samples."""
        return isinstance(self._samples, WorkerSamples) and self._samples.is_starved

    @cached_property
    def flops(self) -> tuple[int, int]:
        """FLOPs per sample of value alone, and of value and gradient, as torch counts them on the first
        one.
        """
        counts = []
        for gradient in (None, torch.zeros_like(self.parameters)):
            with FlopCounterMode(display=False) as counter:
                self.add([0], gradient)
            counts.append(counter.get_total_flops())
        return counts[0], counts[1]

    @property
    def is_sum(self) -> bool:
        """True if the loss was found to be a sum over samples instead of their mean."""
        return is_sum(self._loss)

    def add(self, samples: Sequence[int], gradient: Tensor | None) -> PortionSum:
        """Return the sum of losses over these samples, and add its gradient to ``gradient``."""
        if not len(samples):
            return PortionSum(0.0, 0, {})
        with self._at_point(gradient) as (flat, added):
            flat.set_grad_views(added)
            try:
                batch = self.read(samples).to(flat.vector.device)
                return self.loss_sum(batch, flat.module, added is not None)
            finally:
                flat.set_grad_views(None)

    def move_to(self, device: torch.device) -> None:
        """Compute on this device from now on; see `shards.runtime.work.DeviceWork`."""
        self._computing = FlatParameters(deepcopy(self.flat.module))
        self._computing.move_to(device)

    @contextmanager
    def _at_point(self, gradient: Tensor | None) -> Iterator[tuple[FlatParameters, Tensor | None]]:
        """Yield the parameters that compute and a vector on their device, which is added to ``gradient``."""
        flat = self._computing
        if flat is self.flat:
            yield flat, gradient
            return
        compute_on(flat.vector.device)
        flat.vector.copy_(self.flat.vector)
        added = None if gradient is None else torch.zeros_like(flat.vector)
        yield flat, added
        if gradient is not None and added is not None:
            gradient.add_(added.cpu())

    def read(self, samples: Sequence[int]) -> Batch:
        """Return these samples."""
        return self._samples.batch(samples)

    def loss_sum(self, batch: Batch, network: nn.Module, learn: bool) -> PortionSum:
        """Return the sum of losses over a batch as ``network``, this module or a copy, computes it.

        With ``learn`` its parameters receive their gradients.
        """
        with torch.set_grad_enabled(learn):
            outputs, targets = network(batch.inputs), require_targets(batch.targets)
            found = score(self._loss, outputs, targets)
            if found.scored < found.targets:
                raise UserError(
                    f"{found.targets - found.scored} targets are "
                    f"{int(targets[~counted_mask(self._loss, targets)][0])}, which the loss ignores in its "
                    "mean: a sum over portions would depend on how they are dealt; remove these samples "
                    "from the data set, or give them a separate class"
                )
            loss = self._loss(outputs, targets) * len(targets)
            if learn:
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        value = float(loss.detach())
        if not isfinite(value):
            check_finite(batch)
        return PortionSum(value, len(targets), found.sums)

    @property
    def held_out(self) -> int:
        """The number of validation samples."""
        return 0 if self._held is None else len(self._held)

    def validate(self, start: int, stop: int) -> PortionSum:
        """Return the sum of losses over these validation samples, and the number classified correctly."""
        with self._at_point(None) as (flat, _):
            return self.validation_sum(flat.module, start, stop, flat.vector.device)

    @torch.no_grad()
    def validation_sum(
        self, network: nn.Module, start: int, stop: int, device: torch.device | None = None
    ) -> PortionSum:
        """Evaluate validation samples with ``network``: this module or a copy, perhaps on a device."""
        assert self._held is not None, "the caller checks `held_out`"
        batch = self._held.batch(range(start, stop))
        batch = batch if device is None else batch.to(device)
        outputs, targets = network(batch.inputs), require_targets(batch.targets)
        found = score(self._loss, outputs, targets)
        sums = dict(found.sums)
        if "right" in sums:
            sums["accuracy"] = sums.pop("right")
        return PortionSum(float(self._loss(outputs, targets)) * found.weight, len(targets), sums)


class LayerObjective(ModuleObjective):
    """The layers of a recipe, with the FLOPs of its plan."""

    @cached_property
    def flops(self) -> tuple[int, int]:
        """FLOPs per sample of value alone, and of value and gradient; only products count.

        For one hidden layer the value takes 2 (n_i + n_o) n_h, and value and gradient 4 n_i n_h + 6 n_h n_o.
        Source: Aberdeen et al. 2000, section 6.2.
        """
        network = self.network
        assert isinstance(network, LayerNetwork), "objective_from_recipe makes it"
        return sum(plan.forward_flops for plan in network.plans), network.update_flops


class DenseObjective(LayerObjective):
    """Fully connected layers on Cotswold's kernels; the parameters of the layers are views of their
    vector.
    """

    def __init__(
        self,
        module: LayerNetwork,
        dense: DenseNetwork,
        loss: Loss,
        samples: IndexedSamples,
        held: IndexedSamples | None,
    ) -> None:
        super().__init__(module, loss, samples, held)
        assert self.flat.shapes == [slot.shape for slot in dense.layout], "both use one vector"
        self._dense = dense

    def add(self, samples: Sequence[int], gradient: Tensor | None) -> PortionSum:
        """Return the sum of losses over these samples, and add its gradient to ``gradient``."""
        if not len(samples):
            return PortionSum(0.0, 0, {})
        with self._at_point(gradient) as (flat, added):
            batch = self._samples.batch(samples).to(flat.vector.device)
            targets = require_targets(batch.targets)
            classes = not targets.is_floating_point()
            value, right = self._dense.add(
                flat.vector, batch.inputs.flatten(1).t(), targets if classes else targets.t(), added
            )
        return PortionSum(value, len(samples), {"right": float(right)} if classes else {})


_OUTPUTS: Mapping[tuple[str, str], tuple[DenseOutput, DenseLoss]] = {
    ("squared_error", "linear"): ("identity", "squared_error"),
    ("squared_error", "tanh"): ("tanh", "squared_error"),
    ("squared_error", "sigmoid"): ("sigmoid", "squared_error"),
    ("cross_entropy", "linear"): ("softmax", "cross_entropy"),
    ("bce_with_logits", "linear"): ("sigmoid", "cross_entropy"),
}
"""The kernels' names of an output activation and a loss."""


def dense_of(recipe: Recipe, outputs: int) -> DenseNetwork | None:
    """Return the layers of a recipe as one fully connected network; None for other layers."""
    layers, objective = recipe.network.layers, recipe.objective
    kinds = [layer.type for layer in layers[1::2]]
    linear = [layer for layer in layers[::2] if isinstance(layer, Linear)]
    end = _OUTPUTS.get((recipe.loss, recipe.network.output))
    activation = kinds[0] if kinds else "tanh"
    if len(layers) % 2 or len(linear) != len(kinds) or len({*kinds, activation}) > 1 or end is None:
        return None
    if activation not in get_args(DenseActivation):
        return None
    assert isinstance(objective, LossObjective) and isinstance(recipe.training, BatchTraining), "batch only"
    output, loss = end
    return DenseNetwork(
        (recipe.input.size, *(layer.features for layer in linear), outputs),
        cast(DenseActivation, activation),
        output,
        loss,
        (objective.target_low, objective.target_high),
        recipe.training.deterministic,
    )


def objective_from_recipe(
    recipe: Recipe,
    store: Store,
    rows: Path | None = None,
    pool: str | None = None,
    token: Token | None = None,
) -> LayerObjective:
    """Return the objective of a recipe over its store.

    ``rows`` is a folder with samples from `write_rows`. ``pool`` is instead the `PoolLocation` of data
    servers for the training samples, with their ``token`` (by default from the environment).
    """
    held = StoreSamples(store, "validation", rows) if store.splits.get("validation") else None
    network = supervised_network(with_cpu_device(recipe), store.outputs)
    samples: IndexedSamples
    if pool is None:
        samples = StoreSamples(store, "train", rows)
    else:
        samples = CachedSamples(store, RemoteSamples(store, PoolLocation.parsed(pool), token=token))
    return work_of(recipe, network, store.outputs, loss_of(recipe), samples, held)


def work_of(
    recipe: Recipe,
    network: LayerNetwork,
    outputs: int,
    loss: Loss,
    samples: IndexedSamples,
    held: IndexedSamples | None,
) -> LayerObjective:
    """Return the objective of a recipe over any samples, with dense kernels for fully connected layers."""
    dense = dense_of(recipe, outputs)
    if dense is None:
        return LayerObjective(network, loss, samples, held)
    return DenseObjective(network, dense, loss, samples, held)


def build_objective(
    recipe: str, store: str, rows: str | None = None, pool: str | None = None
) -> LayerObjective:
    """Build the objective from values that can be sent to another process: a recipe's text, and paths."""
    torch.set_num_threads(1)
    return objective_from_recipe(
        recipes.parse(recipe), Store(store), None if rows is None else Path(rows), pool
    )


INHERITED_OBJECTIVE = "work"
"""The name of a program's objective in the processes forked from it."""


def inherited_objective() -> ModuleObjective:
    """Return the objective of the program from which this process was forked."""
    found = inherited(INHERITED_OBJECTIVE)
    assert isinstance(found, ModuleObjective), "the parent gave this type"
    return found
