"""What the strategies that train stacks share.

Knows: a network of stacks, its share of a recipe, the objective on validation pictures. Does not know: the
order in which stacks are trained, files, clocks, the terminal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cotswold import ops
from cotswold.checkpoint import StateDict, StateValue
from cotswold.optim import rate_at
from cotswold.recipe import Recipe
from cotswold.recipe.schema import StackTraining
from cotswold.run import Metrics
from cotswold.training.parameters.base import Momenta, Network, ParameterHolder
from cotswold.training.strategies.base import Batch
from cotswold.training.strategies.phases import Epochs, Phase, planned

Validation = Callable[[], Iterable[Tensor]]
"""Gives the validation pictures anew, in batches, images last."""


class StackStrategy(ABC):
    """A network of stacks, learnt from ``epoch_steps`` mini-batches an epoch, for so many ``epochs`` and then
    those of each prolongation."""

    is_best = False
    should_stop = False

    def __init__(
        self,
        holder: ParameterHolder,
        recipe: Recipe,
        epochs: Sequence[Epochs],
        epoch_steps: float,
        validation: Validation,
    ) -> None:
        assert isinstance(recipe.training, StackTraining), "the recipe's schema has made sure of it"
        self.holder = holder
        self.network = holder.network
        self.recipe = recipe
        self.training: StackTraining = recipe.training
        self.phases = planned(
            epochs, lambda count: max(1, round(count * epoch_steps)), lambda steps: max(1, steps // 8)
        )
        self.validation = validation
        self._first: Batch | None = None
        self.enter(0, 0)

    @property
    def parameters(self) -> int:
        """The filter weights of all stacks."""
        return sum(stack.geometry.filters.parameters for stack in self.network.stacks)

    @property
    def phase(self) -> Phase:
        """The phase at hand."""
        return self.phases[self._phase]

    @property
    def step(self) -> int:
        """The step of the phase that comes next."""
        return self._step

    @property
    def over(self) -> bool:
        """Whether the last phase is over."""
        return self._phase == len(self.phases)

    def enter(self, phase: int, step: int) -> None:
        """Stand before a step of a phase."""
        self._phase, self._step = phase, step

    def begin(self, batches: Iterator[Batch]) -> None:
        """Set gains and α from the first pictures, with momenta at rest.

        Filters that have learnt keep theirs; norms of what moves are measured anew, as after a restart.
        """
        self._first = next(batches)
        if self.phase.prolongation:
            for stack in self.network.stacks:
                stack.train()
            self.holder.rest(self.moving())
        else:
            self.calibrate(self._first.inputs)

    def train_step(self, batches: Iterator[Batch]) -> Metrics:
        """One step on the stacks that move."""
        batch, self._first = self._first or next(batches), None
        metrics = self.update(batch.inputs)
        self._step += 1
        return metrics

    @abstractmethod
    def moving(self) -> Sequence[int]:
        """The stacks that the phase trains."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """FLOPs of a step for one picture in the phase at hand, by the geometries of the stacks."""

    @abstractmethod
    def describe(self) -> Mapping[str, object]:
        """What the phase at hand trains, for the run's events."""

    @staticmethod
    @abstractmethod
    def momentum_name(stack: int) -> str:
        """What a checkpoint calls the momentum of a stack."""

    @abstractmethod
    def momenta(self) -> Momenta:
        """The momenta that a checkpoint has now."""

    @abstractmethod
    def calibrate(self, pictures: Tensor) -> None:
        """Set gain and α of what moves from the first pictures; momenta at rest."""

    @abstractmethod
    def update(self, pictures: Tensor) -> Metrics:
        """One step."""

    def validate(self) -> Metrics | None:
        """The objective of what moves on the validation pictures."""
        return validate_stacks(self.network, list(self.moving()), self.validation)

    def state_dict(self) -> StateDict:
        """The network, and the momentum of what has begun to move."""
        return self.holder.state_dict(self.momenta())

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:  # noqa: B027  # all of it is live
        """Nothing is left to do: all of it is live."""

    def rule(self, stack: int) -> ops.StepRule:
        """Rate and momentum of the next step on a stack."""
        training = self.training
        rate = rate_at(
            self.step, self.steps, self.recipe.relative_rate(stack), training.schedule, training.warmup
        )
        return ops.StepRule(rate=rate, momentum=training.momentum)

    def objective(self, stack: int) -> ops.StackObjective:
        """The objective of the next step on a stack, whose λ rises over the first part of the run."""
        settings = self.network.stacks[stack].objective_settings
        rising = 0.0 if self.phase.prolongation else self.recipe.stack_objective.ramp * self.steps
        return replace(settings, sparsity=settings.sparsity * min(1.0, (self.step + 1) / max(rising, 1.0)))

    @property
    def steps(self) -> int:
        """Steps of the phase at hand."""
        steps = self.phase.steps
        assert steps is not None, "epochs of stacks are counted"
        return steps


def metrics_of(reports: Sequence[ops.StackReport], rate: float, samples: int) -> Metrics:
    """The sum of the stacks' objectives and its parts."""
    return Metrics(
        loss=sum(float(report.loss) for report in reports),
        samples=samples,
        details={
            "reconstruction": sum(float(report.reconstruction) for report in reports),
            "sparsity": sum(float(report.sparsity) for report in reports),
            "alpha": float(reports[-1].alpha),
            "rate": rate,
        },
    )


@torch.no_grad()
def validate_stacks(network: Network, trained: list[int], validation: Validation) -> Metrics | None:
    """The mean objective of the given stacks over the validation pictures; None where there are none."""
    count, totals = 0, {"loss": 0.0, "reconstruction": 0.0, "sparsity": 0.0}
    for pictures in validation():
        images = pictures.shape[0]
        count += images
        for index, stack in enumerate(network.stacks[: max(trained) + 1]):
            if index in trained:
                loss, reconstruction, sparsity = stack.objective_parts(pictures)
                totals["loss"] += float(loss) * images
                totals["reconstruction"] += float(reconstruction) * images
                totals["sparsity"] += float(sparsity) * images
            if index < max(trained):
                pictures = stack(pictures)
    if count == 0:
        return None
    means = {name: total / count for name, total in totals.items()}
    return Metrics(means.pop("loss"), count, means)
