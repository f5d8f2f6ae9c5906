"""Greedy training: stack after stack, the earlier ones frozen and computed on the fly.

Knows: the order of stacks and the one call that trains a stack. Does not know: files, clocks, the terminal.
Source: Coates et al. 2013, section 3; Hinton et al. 2006.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from cotswold import ops
from cotswold.nn import StackNetwork
from cotswold.optim import rate_at
from cotswold.recipe import Recipe
from cotswold.training.strategy import Batch, Measured

HeldOut = Callable[[], Iterable[Tensor]]
"""Gives the held-out pictures anew, in batches, images last."""


class Greedy:
    """The strategy `greedy`: phase k trains stack k."""

    improved = False

    def __init__(self, network: StackNetwork, recipe: Recipe, pictures: int, held_out: HeldOut) -> None:
        self.network = network
        self.recipe = recipe
        self.pictures = pictures
        self.held_out = held_out
        self._momentum: Tensor | None = None

    @property
    def phases(self) -> int:
        """One a stack."""
        return len(self.network.stacks)

    @property
    def parameters(self) -> int:
        """The filter weights of all stacks."""
        return sum(stack.geometry.filters.parameters for stack in self.network.stacks)

    def steps(self, phase: int) -> int:
        """Mini-batches in the stack's epochs; at least one."""
        epochs = self.recipe.network.stacks[phase].epochs or self.recipe.training.epochs
        return max(1, round(epochs * self.pictures / self.recipe.training.batch))

    def describe(self, phase: int) -> Mapping[str, object]:
        """The stack's place, maps and weights."""
        geometry = self.network.stacks[phase].geometry
        return {
            "stack": phase,
            "input": str(geometry.input),
            "output": str(geometry.output),
            "parameters": geometry.filters.parameters,
        }

    def flops(self, phase: int) -> int:
        """The update of the stack and the forward passes of those below, one picture."""
        geometries = [stack.geometry for stack in self.network.stacks]
        return geometries[phase].update_flops + sum(g.forward_flops for g in geometries[:phase])

    def begin(self, phase: int, batch: Batch) -> None:
        """Set the stack's input gain and α from the first pictures; momentum at rest."""
        stack = self.network.stacks[phase]
        stack.calibrate(self._below(phase, batch.pictures))
        self._moving(phase).zero_()

    def advance(self, phase: int, step: int, batch: Batch) -> Measured:
        """One step on the stack's filters and α."""
        stack = self.network.stacks[phase]
        rule = step_rule(self.recipe, phase, step, self.steps(phase))
        report = ops.stack_step(
            stack.state(self._moving(phase)),
            self._below(phase, batch.pictures),
            stack.geometry,
            ramped(stack.objective_settings, self.recipe, step, self.steps(phase)),
            rule,
        )
        return measured([report], rule.rate)

    def validate(self, phase: int) -> Measured | None:
        """The stack's objective on the held-out pictures."""
        return validate_stacks(self.network, [phase], self.held_out)

    def interval(self, phase: int) -> int:
        """Eight times a stack."""
        return max(1, self.steps(phase) // 8)

    def finished(self, phase: int) -> bool:
        """A stack takes all its steps."""
        return False

    def tensors(self, phase: int, step: int) -> dict[str, Tensor]:
        """The network, and the momentum of a stack that has begun."""
        tensors = network_tensors(self.network)
        if step > 0:
            tensors["momentum"] = self._moving(phase)
        return tensors

    def state(self) -> dict[str, object]:
        """Nothing beyond the tensors."""
        return {}

    def restored(self, tensors: Mapping[str, Tensor], state: Mapping[str, object]) -> None:
        """Nothing beyond the tensors."""

    def _moving(self, phase: int) -> Tensor:
        """The momentum of a stack; that of the one before is let go."""
        filters = self.network.stacks[phase].filters
        if self._momentum is None or self._momentum.shape != filters.shape:
            self._momentum = torch.zeros_like(filters)
        return self._momentum

    def _below(self, phase: int, pictures: Tensor) -> Tensor:
        with torch.no_grad():
            for stack in self.network.stacks[:phase]:
                if stack.training:
                    stack.eval()  # so that the norms of frozen filters are computed once
                pictures = stack(pictures)
        return pictures


def network_tensors(network: torch.nn.Module) -> dict[str, Tensor]:
    """The live tensors of a network under the names that every checkpoint gives them."""
    return {f"network.{name}": tensor for name, tensor in network.state_dict().items()}


def step_rule(recipe: Recipe, stack: int, step: int, steps: int) -> ops.StepRule:
    """Rate and momentum of one step on one stack."""
    training = recipe.training
    rate = recipe.network.stacks[stack].rate or training.step_size
    return ops.StepRule(
        rate=rate_at(step, steps, rate, training.schedule, training.warmup), momentum=training.momentum
    )


def ramped(objective: ops.StackObjective, recipe: Recipe, step: int, steps: int) -> ops.StackObjective:
    """The objective of a step, whose λ rises over the first part of the run."""
    rising = recipe.objective.ramp * steps
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
def validate_stacks(network: StackNetwork, trained: list[int], held_out: HeldOut) -> Measured | None:
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
