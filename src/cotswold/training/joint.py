"""Joint training: every stack at once, the sum of their objectives, back-propagated from the top.

Knows: how gradients of the losses above reach a stack. Does not know: files, clocks, the terminal.
Source: Coates et al. 2013, section 5.1 (the scaling runs) and footnote 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cotswold.training.home import Momenta
from cotswold.training.stacks import (
    StackStrategy,
    measured,
    ramped,
    step_rule,
    validate_stacks,
)
from cotswold.training.strategy import Batch, Measured


class Joint(StackStrategy):
    """The strategy `joint`: one phase in which all stacks move."""

    phases = 1

    def describe(self, phase: int) -> Mapping[str, object]:
        """The network's maps and weights."""
        stacks = [stack.geometry for stack in self.network.stacks]
        return {
            "stack": "all",
            "input": str(stacks[0].input),
            "output": str(stacks[-1].output),
            "parameters": self.parameters,
        }

    def flops(self, phase: int) -> int:
        """Every stack's update, its forward pass for the stacks above, and their gradient through it."""
        stacks = [stack.geometry for stack in self.network.stacks]
        through = sum(geometry.filters.product_flops for geometry in stacks[1:])
        return sum(geometry.update_flops + geometry.forward_flops for geometry in stacks[:-1]) + (
            stacks[-1].update_flops + through
        )

    def begin(self, phase: int, batch: Batch) -> None:
        """Set each stack's input gain and α from the first pictures, from the bottom upwards; momenta at
        rest."""
        self.home.rest(self.moving(phase))
        pictures = batch.pictures
        with torch.no_grad():
            for stack in self.network.stacks:
                stack.calibrate(pictures)
                pictures = stack(pictures)

    def advance(self, phase: int, step: int, batch: Batch) -> Measured:
        """One step on all stacks, from the top down; all gradients are those before the step."""
        inputs, reports = [batch.pictures], []
        with torch.no_grad():
            for stack in self.network.stacks[:-1]:
                inputs.append(stack(inputs[-1]))
        upstream: Tensor | None = None
        steps = self.steps(phase)
        for index in reversed(range(len(self.network.stacks))):
            stack = self.network.stacks[index]
            report = self.home.step(
                index,
                inputs.pop(),
                ramped(stack.objective_settings, self.recipe, step, steps),
                step_rule(self.recipe, index, step, steps),
                upstream=upstream,
                input_gradient=index > 0,
            )
            upstream = report.input_gradient
            reports.append(report)
        return measured(reports[::-1], step_rule(self.recipe, 0, step, steps).rate)

    def validate(self, phase: int) -> Measured | None:
        """The sum of all objectives on the held-out pictures."""
        return validate_stacks(self.network, list(range(len(self.network.stacks))), self.held_out)

    def moving(self, phase: int) -> Sequence[int]:
        """All."""
        return range(len(self.network.stacks))

    def momenta(self, phase: int, step: int) -> Momenta:
        """Every stack's."""
        return {f"momentum.{index}": index for index in range(len(self.network.stacks))}
