"""Greedy training: stack after stack, the earlier ones frozen and computed on the fly.

Knows: the order of stacks and the one call that trains a stack. Does not know: files, clocks, the terminal.
Source: Coates et al. 2013, section 3; Hinton et al. 2006.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cotswold.training.home import Momenta
from cotswold.training.stacks import StackStrategy, measured, ramped, step_rule, validate_stacks
from cotswold.training.strategy import Batch, Measured


class Greedy(StackStrategy):
    """The strategy `greedy`: phase k trains stack k."""

    @property
    def phases(self) -> int:
        """One a stack."""
        return len(self.network.stacks)

    def steps(self, phase: int) -> int:
        """Mini-batches in the stack's epochs; at least one."""
        epochs = self.recipe.network.stacks[phase].epochs or self.recipe.training.epochs
        return max(1, round(epochs * self.epoch_steps))

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
        self.home.rest(self.moving(phase))

    def advance(self, phase: int, step: int, batch: Batch) -> Measured:
        """One step on the stack's filters and α."""
        stack = self.network.stacks[phase]
        rule = step_rule(self.recipe, phase, step, self.steps(phase))
        report = self.home.step(
            phase,
            self._below(phase, batch.pictures),
            ramped(stack.objective_settings, self.recipe, step, self.steps(phase)),
            rule,
        )
        return measured([report], rule.rate)

    def validate(self, phase: int) -> Measured | None:
        """The stack's objective on the held-out pictures."""
        return validate_stacks(self.network, [phase], self.held_out)

    def moving(self, phase: int) -> Sequence[int]:
        """One."""
        return [phase]

    def momenta(self, phase: int, step: int) -> Momenta:
        """That of a stack that has begun."""
        return {"momentum": phase} if step > 0 else {}

    def _below(self, phase: int, pictures: Tensor) -> Tensor:
        with torch.no_grad():
            for stack in self.network.stacks[:phase]:
                if stack.training:
                    stack.eval()  # so that the norms of frozen filters are computed once
                pictures = stack(pictures)
        return pictures
