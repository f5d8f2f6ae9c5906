"""What the strategies that train stacks share.

Knows: a network of stacks, its share of a recipe, the held-out objective. Does not know: the order in which
stacks are trained, files, clocks, the terminal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cotswold import ops
from cotswold.checkpoint import Checkpoint, Piece, SealedPiece
from cotswold.optim import rate_at
from cotswold.recipe import Recipe
from cotswold.training.home import Home, Momenta, Network
from cotswold.training.strategy import Measured

HeldOut = Callable[[], Iterable[Tensor]]
"""Gives the held-out pictures anew, in batches, images last."""


class StackStrategy(ABC):
    """A network of stacks, learnt from ``epoch_steps`` mini-batches an epoch."""

    improved = False

    def __init__(self, home: Home, recipe: Recipe, epoch_steps: float, held_out: HeldOut) -> None:
        self.home = home
        self.network = home.network
        self.recipe = recipe
        self.epoch_steps = epoch_steps
        self.held_out = held_out

    @property
    def parameters(self) -> int:
        """The filter weights of all stacks."""
        return sum(stack.geometry.filters.parameters for stack in self.network.stacks)

    def steps(self, phase: int) -> int:
        """Mini-batches in the epochs of the recipe; at least one."""
        return max(1, round(self.recipe.training.epochs * self.epoch_steps))

    def interval(self, phase: int) -> int:
        """Eight times a phase."""
        return max(1, self.steps(phase) // 8)

    def finished(self, phase: int) -> bool:
        """A phase takes all its steps."""
        return False

    def go_on(self, phase: int) -> None:
        """Momentum at rest; norms of what moves are measured anew, as after a restart."""
        for stack in self.network.stacks:
            stack.train()
        self.home.rest(self.moving(phase))

    @abstractmethod
    def moving(self, phase: int) -> Sequence[int]:
        """The stacks that a phase trains."""

    @abstractmethod
    def momenta(self, phase: int, step: int) -> Momenta:
        """The momenta that a checkpoint has; a strategy names its own."""

    def tensors(self, phase: int, step: int) -> dict[str, Tensor]:
        """The network, and the momentum of what has begun to move, where they are in memory."""
        return self.home.tensors(self.momenta(phase, step))

    def apart(self, phase: int, step: int) -> Iterable[Piece | SealedPiece]:
        """The same where they are in files, or parts of them on this rank."""
        return self.home.apart(self.momenta(phase, step))

    def take_up(self, checkpoint: Checkpoint, phase: int, step: int) -> None:
        """Take up what is in files, or this rank's parts."""
        self.home.take_up(checkpoint, self.momenta(phase, step))

    def state(self) -> dict[str, object]:
        """Nothing beyond the tensors."""
        return {}

    def restored(  # noqa: B027  # a stack has nothing to add, and needs no subclass to say so
        self, tensors: Mapping[str, Tensor], state: Mapping[str, object]
    ) -> None:
        """Nothing beyond the tensors."""


def step_rule(recipe: Recipe, stack: int, step: int, steps: int) -> ops.StepRule:
    """Rate and momentum of one step on one stack."""
    training = recipe.training
    rate = recipe.relative_rate(stack)
    return ops.StepRule(
        rate=rate_at(step, steps, rate, training.schedule, training.warmup), momentum=training.momentum
    )


def ramped(objective: ops.StackObjective, recipe: Recipe, step: int, steps: int) -> ops.StackObjective:
    """The objective of a step, whose λ rises over the first part of the run."""
    rising = recipe.stack_objective.ramp * steps
    return replace(objective, sparsity=objective.sparsity * min(1.0, (step + 1) / max(rising, 1.0)))


def measured(reports: list[ops.StackReport], rate: float) -> Measured:
    """The sum of the stacks' objectives and its parts."""
    return Measured(
        loss=sum(float(report.loss) for report in reports),
        details={
            "reconstruction": sum(float(report.reconstruction) for report in reports),
            "sparsity": sum(float(report.sparsity) for report in reports),
            "alpha": float(reports[-1].alpha),
            "rate": rate,
        },
    )


@torch.no_grad()
def validate_stacks(network: Network, trained: list[int], held_out: HeldOut) -> Measured | None:
    """The mean objective of the given stacks over the held-out pictures; None where there are none."""
    count, totals = 0, {"loss": 0.0, "reconstruction": 0.0, "sparsity": 0.0}
    for pictures in held_out():
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
    return Measured(totals.pop("loss") / count, {name: total / count for name, total in totals.items()})
