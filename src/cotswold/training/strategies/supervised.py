"""Supervised training of any network by SGD with autograd.

Knows: targets, a loss, validation, early stopping. Does not know: where the network comes from, files,
clocks, the terminal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite

import torch
from torch import Tensor, nn

from cotswold.checkpoint import OptionalTensor, StateDict, StateValue
from cotswold.errors import UserError
from cotswold.optim import rate_at
from cotswold.recipe import Recipe
from cotswold.recipe.schema import SupervisedTraining
from cotswold.run import Metrics
from cotswold.training.data.batches import weighted
from cotswold.training.early_stopping import EarlyStopping
from cotswold.training.losses import Loss
from cotswold.training.models import network_tensors
from cotswold.training.nonfinite_loss import check_finite, describe_nonfinite_sample, remedy_of_scale
from cotswold.training.scores import Scores, score
from cotswold.training.strategies.base import Batch
from cotswold.training.strategies.phases import Epochs, Phase, planned

_HOST, _CUDA = "random", "random.cuda"
"""The keys of random states in a checkpoint; dropout draws on the network's device."""

MakeValidationBatches = Callable[[], Iterable[Batch]]
"""Return a new iterator over the validation batches."""


class Supervised:
    """The strategy `supervised`: SGD with momentum, one phase of epochs and one for each extension.

    Validates after every epoch of ``epoch_steps`` steps, rounded down to whole batches.
    """

    def __init__(
        self,
        network: nn.Module,
        training: SupervisedTraining,
        loss: Loss,
        epochs: Sequence[Epochs],
        epoch_steps: float,
        validation: MakeValidationBatches,
    ) -> None:
        self.network, self.training, self.loss, self.validation = network, training, loss, validation
        whole = int(epoch_steps)
        self.phases = planned(epochs, lambda count: max(1, round(count * whole)), lambda steps: whole)
        self.optimiser = torch.optim.SGD(
            [parameter for parameter in network.parameters() if parameter.requires_grad],
            lr=training.learning_rate,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
        )
        self._momenta: list[Tensor] = []
        for parameter in self.optimiser.param_groups[0]["params"]:
            self._momenta.append(torch.zeros_like(parameter))
            self.optimiser.state[parameter]["momentum_buffer"] = self._momenta[-1]
        self.is_best = False
        self._stopping = EarlyStopping(training.patience)
        self._device = torch.device(training.device)
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

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return the network's outputs."""
        found: Tensor = self.network(inputs)
        return found

    def learn(self) -> None:
        """Put the network into training mode."""
        self.network.train()

    def train_step(self, batches: Iterator[Batch]) -> Metrics:
        """Take one step of SGD."""
        batch, training = next(batches), self.training
        targets = require_targets(batch.targets)
        steps = self.phase.steps
        assert steps is not None, "epochs are counted"
        rate = rate_at(self._step, steps, training.learning_rate, training.schedule, training.warmup)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.learn()
        self.optimiser.zero_grad(set_to_none=True)
        with explain_dtype_errors(self.network, batch):
            outputs = self.outputs(batch.inputs)
            loss = weighted(self.loss, outputs, batch)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.optimiser.step()
        self._step += 1
        found = score(self.loss, outputs, targets)
        details = {} if found.accuracy is None else {"accuracy": found.accuracy}
        value, remedy = float(loss.detach()), ""
        if not isfinite(value):
            remedy = describe_nonfinite_sample(batch) or remedy_of_scale(batch)
        return Metrics(value, len(targets), {**details, "learning_rate": rate}, found.weight, remedy)

    @torch.no_grad()
    def validate(self) -> Metrics | None:
        """Return the loss, and the accuracy of class targets, on validation samples; track the best loss."""
        self.network.eval()
        scores = Scores()
        for batch in self.validation():
            targets = require_targets(batch.targets)
            outputs = self.outputs(batch.inputs)
            loss = float(weighted(self.loss, outputs, batch))
            if not isfinite(loss):
                check_finite(batch, "the validation set")
            scores.add(loss, score(self.loss, outputs, targets))
        means = scores.means()
        if means is None:
            return None
        loss = means.pop("loss")
        self.is_best = self._stopping.update(loss)
        return Metrics(loss, scores.samples, means)

    @property
    def should_stop(self) -> bool:
        """True if patience has run out."""
        return self._stopping.is_exhausted

    def state_dict(self) -> StateDict:
        """Return weights, momenta, random states of dropout and the state of early stopping."""
        state: dict[str, StateValue] = dict(self.tensors())
        if self._device.type == "cuda":
            state[_CUDA] = OptionalTensor(torch.cuda.get_rng_state(self._device))
        return {**state, **self._stopping.state()}

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the state, on the network's device."""
        momenta = {f"momentum.{index}": momentum for index, momentum in enumerate(self._momenta)}
        return {**network_tensors(self.network), **momenta, _HOST: torch.get_rng_state()}

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """Restore random states and the state of early stopping.

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
