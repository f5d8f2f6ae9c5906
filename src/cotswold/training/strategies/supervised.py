"""Supervised training of any network by a stochastic optimiser with autograd.

Knows: targets, a loss, validation, early stopping. Does not know: where the network comes from, files,
clocks, the terminal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import isfinite, nan
from typing import Any

import torch
from torch import Tensor, nn

from cotswold.checkpoint import OptionalTensor, StateDict, StateValue
from cotswold.errors import UserError
from cotswold.recipe import Recipe
from cotswold.recipe.schema import SupervisedTraining
from cotswold.run import Metrics
from cotswold.training.components import Components
from cotswold.training.data.batches import weighted
from cotswold.training.early_stopping import Patience
from cotswold.training.learning_rates import LearningRates
from cotswold.training.loss_weights import LossWeight, divisor_of, loss_weight, possible_weights
from cotswold.training.losses import Loss
from cotswold.training.metrics.metric_set import MetricSet
from cotswold.training.models import network_tensors
from cotswold.training.nonfinite_loss import check_finite, describe_nonfinite_sample, remedy_of_scale
from cotswold.training.optimizer_state import TENSORS, OptimizerState
from cotswold.training.optimizers import describe_optimizer, make_optimizer
from cotswold.training.precision import OVERFLOWS, Precision, check_precision, in_float32
from cotswold.training.scores import BatchResult, Scores, mean_of, score
from cotswold.training.strategies.base import Batch
from cotswold.training.strategies.phases import Epochs, Phase
from cotswold.training.strategies.replicated import Replication

_HOST, _CUDA = "random", "random.cuda"
"""The keys of random states in a checkpoint; dropout draws on the network's device."""

_DRAWN = "epoch_batches_drawn"
"""The key of the number of batches drawn in the current epoch, if an update has several."""
_NONE = Components()

MakeValidationBatches = Callable[[], Iterable[Batch]]
"""Return a new iterator over the validation batches."""


def batches_of(epochs: float, epoch_batches: int) -> int:
    """Return the number of batches of some epochs."""
    return max(1, round(epochs * epoch_batches))


def updates_of(batches: int, epoch_batches: int, accumulate: int) -> int:
    """Return the number of updates of some batches, each of ``accumulate``; the last one of an epoch has the
    batches that remain.

    >>> updates_of(27, epoch_batches=9, accumulate=4)
    9
    """
    whole, rest = divmod(batches, epoch_batches)
    return whole * -(-epoch_batches // accumulate) - (-rest // accumulate)


class SupervisedStrategy:
    """The strategy `supervised`: a stochastic optimiser, one phase of epochs and one for each extension.

    A step is an update, of `accumulate` batches. An epoch has ``epoch_steps`` batches, rounded down to whole
    ones; its last update has those that remain. Validates after every epoch.
    """

    replication: Replication | None = None
    """The replicas of the network that divide every batch; None without."""

    def __init__(
        self,
        network: nn.Module,
        training: SupervisedTraining,
        loss: Loss,
        epochs: Sequence[Epochs],
        epoch_steps: float,
        validation: MakeValidationBatches,
        components: Components = _NONE,
    ) -> None:
        self.network, self.training, self.loss, self.validation = network, training, loss, validation
        self.metrics = MetricSet(training.metrics, loss)
        self._epoch_batches, self._drawn = max(1, int(epoch_steps)), 0
        self._epoch_updates = updates_of(self._epoch_batches, self._epoch_batches, training.accumulate)
        self.phases = self._planned(epochs)
        self._device = torch.device(training.device)
        check_precision(training.precision, network)
        self.precision = Precision(training.precision, self._device, training.clip_norm)
        self.optimiser = make_optimizer(training, network, components.optimizer)
        self.rates = LearningRates(self.optimiser, training, components)
        is_own = components.optimizer is not None
        self.optimiser_state = OptimizerState(
            self.optimiser, self.rates.scheduler, network, None if is_own else training.optimizer
        )
        if is_own:
            self.optimiser_state.check()
        self.settings = {
            **describe_optimizer(self.optimiser, training, is_own),
            "schedule": self.rates.name,
            **{name: getattr(training, name) for name in ("precision", "accumulate", "clip_norm")},
        }
        self._called: Callable[[Tensor], Tensor] = torch.compile(network) if training.compile else network
        self.is_best = False
        self._stopping = Patience(training.patience)
        torch.manual_seed(training.seed)
        self.enter(0, 0)

    @property
    def parameters(self) -> int:
        """The number of weights of the network, frozen ones included."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self.phases[self._phase]

    @property
    def flops(self) -> int:
        """FLOPs per sample by the network's plan: the forward pass and both gradients of every product."""
        flops: int = self.network.update_flops  # type: ignore[assignment]  # torch types attributes loosely
        return flops

    def describe(self) -> Mapping[str, object]:
        """Return the network's layers and weights."""
        layers = self.network.layers
        assert isinstance(layers, nn.Sequential), "a network of a recipe"
        return {
            "phase": "layers",
            "layers": [repr(layer) for layer in layers],
            "parameters": self.parameters,
        }

    def enter(self, phase: int, step: int) -> None:
        """Move to a step of a phase."""
        self._phase, self._step = phase, step

    def begin(self, batches: Iterator[Batch]) -> None:
        """Reset the patience counter if the phase extends the run; momentum and the best loss stay."""
        if self.phase.extension:
            self._stopping.restart()

    def _planned(self, epochs: Sequence[Epochs]) -> list[Phase]:
        """Return a phase for the first epochs and for each extension, with the updates of an uninterrupted
        run in total.
        """
        phases: list[Phase] = []
        total, before = 0.0, 0
        for extension, (amount,) in enumerate(epochs):
            total += amount
            steps = self._updates(total) - before
            if amount > 0 or extension == 0:
                phases.append(Phase(0, steps, self._epoch_updates, extension, before, counts_from_start=True))
            before += steps
        return phases

    def _updates(self, epochs: float) -> int:
        """Return the number of updates of some epochs."""
        batches = batches_of(epochs, self._epoch_batches)
        return updates_of(batches, self._epoch_batches, self.training.accumulate)

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return the network's outputs."""
        return self._called(inputs)

    def _loss(self, batch: Batch) -> tuple[Any, Tensor]:
        """Return outputs in float32 and the loss of a batch, computed in the run's precision."""
        with self.precision.autocast():
            outputs: Any = in_float32(self.outputs(batch.inputs))
            return outputs, weighted(self.loss, outputs, batch)

    def learn(self) -> None:
        """Put the network into training mode."""
        self.network.train()

    def train_step(self, batches: Iterator[Batch]) -> Metrics:
        """Take one step of the optimiser, with the gradient of one batch or of several."""
        if self.replication is not None:
            self.replication.seed_step(self._phase, self._step)
        steps = self.phase.steps
        assert steps is not None, "epochs are counted"
        rates = self.rates.before_step(self._step, steps)
        self.learn()
        self.network.zero_grad(set_to_none=True)
        parts: list[BatchResult] = []
        for batch in self._group(batches):
            if self.replication is None:
                parts.append(self.gradients(batch))
            else:
                parts.append(self.replication.gradients(batch, self.loss, self.gradients))
        found, is_mean = mean_of(parts), self.training.accumulate > 1
        divisor = divisor_of([each.weight for each in parts]) if is_mean else None
        update = self.precision.update(self.optimiser, divisor)
        self._step += 1
        self.rates.after_step(self._drawn == 0, is_skipped=update.skipped)
        if update.hopeless:
            found = replace(found, loss=nan, remedy=OVERFLOWS)
        return replace(found, details={**found.details, **update.details, **rates})

    def gradients(self, batch: Batch) -> BatchResult:
        """Add the gradients of a batch, or of a replica's part; return its loss and accuracy."""
        targets, replication = require_targets(batch.targets), self.replication
        with explain_dtype_errors(self.network, batch):
            with nullcontext() if replication is None else replication.normalised():
                outputs, loss = self._loss(batch)
            found = score(self.loss, outputs, targets, batch.weights)
            if replication is None:
                to_minimise, weight = loss, self._loss_weight(batch, outputs)
            else:
                to_minimise = replication.scaled(loss, outputs, batch, self.loss)
                weight = replication.total
            self.precision.backward(
                to_minimise * weight.value if self.training.accumulate > 1 else to_minimise
            )
        details = {} if found.accuracy is None else {"accuracy": found.accuracy}
        value, remedy = float(loss.detach()), ""
        if not isfinite(value):
            remedy = describe_nonfinite_sample(batch) or remedy_of_scale(batch)
        metrics = Metrics(value, len(targets), details, found.weight, remedy)
        return BatchResult(metrics, weight, found.accuracy_weight if details else 0.0)

    def _loss_weight(self, batch: Batch, outputs: Any) -> LossWeight:
        return loss_weight(self.loss, batch, outputs, possible_weights(self.loss, batch))

    def _group(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Draw the batches of an update, all of one epoch."""
        for _ in range(min(self.training.accumulate, self._epoch_batches - self._drawn)):
            batch = next(batches)
            self._drawn = (self._drawn + 1) % self._epoch_batches
            yield batch

    @torch.no_grad()
    def validate(self) -> Metrics | None:
        """Return the loss, the accuracy of class targets and the metrics on validation samples.

        Tracks the best loss.
        """
        self.network.eval()
        self.metrics.reset()
        if self.replication is not None:
            self.replication.copy_buffers()
        scores = Scores()
        for batch in self.validation():
            targets = require_targets(batch.targets)
            outputs, found = self._loss(batch)
            loss = float(found)
            if not isfinite(loss):
                check_finite(batch, "the validation set")
            weight = self._loss_weight(batch, outputs)
            judged = score(self.loss, outputs, targets, batch.weights)
            scores.add(loss, judged, None if weight.is_sum else weight.value)
            self.metrics.update(outputs, targets, batch.weights)
        if self.replication is not None and self.metrics.can_merge:
            self.replication.merge_validation(scores, self.metrics)
        means = scores.means()
        if self._step or means is None:  # the first step of a phase follows the validation of the last
            self.rates.after_validation(None if means is None else means["loss"])
        if means is None:
            return None
        means |= self.metrics.compute()
        loss = means.pop("loss")
        self.is_best = self._stopping.update(loss)
        return Metrics(loss, scores.samples, means)

    @property
    def resume_warning(self) -> str:
        """The settings of a program's optimiser that the loaded checkpoint replaced, as a sentence."""
        return self.optimiser_state.warning

    @property
    def should_stop(self) -> bool:
        """True if patience has run out."""
        return self._stopping.is_exhausted

    def state_dict(self) -> StateDict:
        """Return weights, the optimiser's state, random states of dropout and the state of early stopping."""
        state: dict[str, StateValue] = {TENSORS: self.optimiser_state, **self.tensors()}
        if self._device.type == "cuda":
            state[_CUDA] = OptionalTensor(torch.cuda.get_rng_state(self._device))
        drawn = {} if self.training.accumulate == 1 else {_DRAWN: self._drawn}
        own: dict[str, StateValue] = {**self.optimiser_state.settings(), **self.precision.state(), **drawn}
        return {**state, **own, **self._stopping.state()}

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the state other than the optimiser's, on the network's device."""
        return {**network_tensors(self.network), _HOST: torch.get_rng_state()}

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """Restore random states, settings of the optimiser and the state of early stopping.

        A checkpoint written on the CPU gives the seed of a CUDA device.
        """
        drawn, on_device = state[_HOST], state.get(_CUDA)
        assert isinstance(drawn, Tensor), "as in state_dict"
        torch.set_rng_state(drawn)
        if isinstance(on_device, OptionalTensor):
            torch.cuda.set_rng_state(on_device.tensor, self._device)
        elif self._device.type == "cuda":
            generator = torch.Generator().set_state(drawn)
            with torch.cuda.device(self._device):
                torch.cuda.manual_seed(int(torch.randint(1 << 62, (), generator=generator)))
        self.optimiser_state.load_settings(state)
        self.precision.load(state)
        before = sum(phase.steps or 0 for phase in self.phases[: self._phase])
        self._drawn = int(str(state.get(_DRAWN, (before + self._step) % self._epoch_batches)))
        self._stopping.load(state)


def supervised_training(recipe: Recipe) -> SupervisedTraining:
    """Return the `[training]` section of a recipe with strategy `supervised`."""
    assert isinstance(recipe.training, SupervisedTraining), "the registry selects by strategy"
    return recipe.training


@contextmanager
def explain_dtype_errors(network: nn.Module, batch: Batch) -> Iterator[None]:
    """Replace torch's error by a UserError if samples or targets do not have the parameters' dtype."""
    try:
        yield
    except RuntimeError as error:
        own = {each.dtype for each in network.parameters() if each.is_floating_point()}
        name, said = type(network).__name__, str(error)
        if "'indices'" in said:
            raise UserError(
                f"an embedding of {name} needs integers as inputs ({said}); give samples.long()"
            ) from error
        for what, given in (("samples", batch.inputs), ("targets", batch.targets)):
            if not own or not isinstance(given, Tensor) or given.dtype in own:
                continue
            is_whole = not (given.is_floating_point() or given.is_complex())
            if is_whole and not _DTYPE_ERRORS[what].search(said):  # integers may be classes, or indices
                continue
            theirs, ours = (str(each).removeprefix("torch.") for each in (given.dtype, min(own, key=str)))
            raise UserError(
                f"the {what} are {theirs}, but the parameters of {name} are {ours} ({said}); give "
                f"{what}.to(torch.{ours}){'' if is_whole else f', or module.to(torch.{theirs})'}"
            ) from error
        raise


_DTYPE_ERRORS = {
    "samples": re.compile("dtype|scalar type|[Ii]nput type|not implemented for|data type"),
    "targets": re.compile("Found dtype|can't be cast"),
}
"""Samples of torch's errors about integers where it needs floats."""


def require_targets(targets: Tensor | None) -> Tensor:
    """Return the targets, which the recipe's schema guarantees."""
    assert targets is not None, "a supervised run reads labelled data"
    return targets
