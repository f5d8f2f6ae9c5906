"""Shared code of the strategies that train stacks.

Knows: a network of stacks, its recipe sections, the objective on validation images. Does not know: the order
in which stacks are trained, files, clocks, the terminal.
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
from cotswold.training.parameters.base import Momenta, ParameterStore, Stack
from cotswold.training.strategies.base import Batch
from cotswold.training.strategies.phases import Epochs, Phase, planned

Validation = Callable[[], Iterable[Tensor]]
"""Return a new iterator over the validation images in batches, images last."""


class StackStrategy(ABC):
    """A network of stacks, trained from ``epoch_steps`` mini-batches per epoch for the given ``epochs``.

    The first item of ``epochs`` is the recipe's; each further item extends the run. A subclass defines the
    order of the stacks and the update; `stack_entry` makes its entry.

    Args:
        holder: The filters, in memory, in files or on a mesh.
        recipe: The recipe.
        epochs: The epochs of each stack.
        epoch_steps: The steps of an epoch.
        validation: Makes an iterator over the validation images.
    """

    is_best = False
    should_stop = False

    def __init__(
        self,
        holder: ParameterStore,
        recipe: Recipe,
        epochs: Sequence[Epochs],
        epoch_steps: float,
        validation: Validation,
    ) -> None:
        assert isinstance(recipe.training, StackTraining), "the recipe's schema has made sure of it"
        self.parameter_store = holder
        self.network = holder.network
        self.recipe = recipe
        self.training: StackTraining = recipe.training
        self.phases = planned(
            epochs, lambda count: max(1, round(count * epoch_steps)), lambda steps: max(1, steps // 8)
        )
        self.validation = validation
        self._first: Batch | None = None
        self._phase = self._step = 0
        self.enter(0, 0)

    @property
    def parameters(self) -> int:
        """The number of filter weights of all stacks."""
        return sum(stack.geometry.filters.parameters for stack in self.network.stacks)

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self.phases[self._phase]

    @property
    def step(self) -> int:
        """The next step of the phase."""
        return self._step

    @property
    def is_finished(self) -> bool:
        """True if all phases are over."""
        return self._phase == len(self.phases)

    def enter(self, phase: int, step: int) -> None:
        """Move to a step of a phase."""
        self._phase, self._step = phase, step

    def begin(self, batches: Iterator[Batch]) -> None:
        """Set gains and α from the first images, and momenta to zero.

        In an extension, trained filters keep their gains; norms of the trained stacks are measured again, as
        after a restart.

        Args:
            batches: The batches.
        """
        self._first = next(batches)
        if self.phase.extension:
            for stack in self.network.stacks:
                stack.train()
            self.parameter_store.zero_momentum(self.trained_stacks())
        else:
            self.calibrate(self._first.inputs)

    def train_step(self, batches: Iterator[Batch]) -> Metrics:
        """Take one step on the stacks of the phase.

        Args:
            batches: The batches.
        """
        batch, self._first = self._first or next(batches), None
        metrics = self.update(batch)
        self._step += 1
        return metrics

    @abstractmethod
    def trained_stacks(self) -> Sequence[int]:
        """Return the stacks that the phase trains."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """FLOPs per image of a step in the current phase, from the geometries of the stacks."""

    @abstractmethod
    def describe(self) -> Mapping[str, object]:
        """Describe the current phase for the run's events."""

    @staticmethod
    @abstractmethod
    def momentum_name(stack: int) -> str:
        """Return the name of a stack's momentum in checkpoints."""

    @abstractmethod
    def momenta(self) -> Momenta:
        """Return the momenta that a checkpoint has now."""

    @abstractmethod
    def calibrate(self, samples: Tensor) -> None:
        """Set gain and α of the trained stacks, and their momenta to zero.

        Args:
            samples: The first images ``(channel, y, x, image)``.
        """

    @abstractmethod
    def update(self, batch: Batch) -> Metrics:
        """Take one step.

        Args:
            batch: The images ``(channel, y, x, image)``.
        """

    def validate(self) -> Metrics | None:
        """Return the objective of the trained stacks on the validation images."""
        return validate_stacks(self.network.stacks, list(self.trained_stacks()), self.validation())

    def state_dict(self) -> StateDict:
        """Return the network, and the momenta of stacks that have been trained."""
        return self.parameter_store.state_dict(self.momenta())

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:  # noqa: B027  # all of it is live
        """Do nothing: all state is in live tensors."""

    def rule(self, stack: int) -> ops.StepRule:
        """Return the rate and momentum of the next step on a stack."""
        training = self.training
        rate = rate_at(
            self.step, self.steps, self.recipe.relative_rate(stack), training.schedule, training.warmup
        )
        return ops.StepRule(rate=rate, momentum=training.momentum)

    def objective(self, stack: int) -> ops.StackObjective:
        """Return the objective of the next step on a stack; λ ramps up during the first part of the run."""
        settings = self.network.stacks[stack].objective_settings
        rising = 0.0 if self.phase.extension else self.recipe.stack_objective.sparsity_ramp * self.steps
        return replace(settings, sparsity=settings.sparsity * min(1.0, (self.step + 1) / max(rising, 1.0)))

    @property
    def steps(self) -> int:
        """Steps of the current phase."""
        steps = self.phase.steps
        assert steps is not None, "epochs of stacks are counted"
        return steps


def metrics_of(reports: Sequence[ops.StackReport], rate: float, samples: int) -> Metrics:
    """Return the sum of the stacks' objectives, and its terms."""
    return Metrics(
        loss=sum(float(report.loss) for report in reports),
        samples=samples,
        details={
            "reconstruction": sum(float(report.reconstruction) for report in reports),
            "sparsity": sum(float(report.sparsity) for report in reports),
            "alpha": float(reports[-1].alpha),
            "relative_rate": rate,
        },
    )


@torch.no_grad()
def validate_stacks(
    stacks: Sequence[Stack], trained: list[int], validation: Iterable[Tensor]
) -> Metrics | None:
    """Return the mean objective of the trained stacks over the validation images; None without images."""
    count, totals = 0, {"loss": 0.0, "reconstruction": 0.0, "sparsity": 0.0}
    for samples in validation:
        images = samples.shape[0]
        count += images
        for index, stack in enumerate(stacks[: max(trained) + 1]):
            if index in trained:
                loss, reconstruction, sparsity = stack.objective_parts(samples)
                totals["loss"] += float(loss) * images
                totals["reconstruction"] += float(reconstruction) * images
                totals["sparsity"] += float(sparsity) * images
            if index < max(trained):
                samples = stack(samples)
    if count == 0:
        return None
    means = {name: total / count for name, total in totals.items()}
    return Metrics(means.pop("loss"), count, means)
