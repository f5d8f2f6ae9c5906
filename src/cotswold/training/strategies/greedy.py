"""Greedy training: one stack after another, with the earlier ones frozen and computed on the fly.

Knows: the order of stacks and the call that trains a stack. Does not know: files, clocks, the terminal.
Source: Coates et al. 2013, section 3; Hinton et al. 2006.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cotswold.run import Metrics
from cotswold.training.jobs.flops import greedy_flops
from cotswold.training.parameters.base import Momenta
from cotswold.training.strategies.stacks import StackStrategy, metrics_of


class Greedy(StackStrategy):
    """The strategy `greedy`: each phase trains one stack."""

    @property
    def flops(self) -> int:
        """FLOPs per image: the update of the stack and the forward passes of the stacks below."""
        return greedy_flops([stack.geometry for stack in self.network.stacks], self.phase.part)

    def describe(self) -> Mapping[str, object]:
        """Return the stack's index, maps and weights."""
        geometry = self.network.stacks[self.phase.part].geometry
        return {
            "phase": self.phase.part,
            "input": str(geometry.input),
            "output": str(geometry.output),
            "parameters": geometry.filters.parameters,
        }

    def trained_stacks(self) -> Sequence[int]:
        """Return the stack of the phase."""
        return [self.phase.part]

    @staticmethod
    def momentum_name(stack: int) -> str:
        """Return one name for all stacks, because only one is trained at a time."""
        return "momentum"

    def momenta(self) -> Momenta:
        """Return the momentum of the phase's stack, after its first step."""
        return {self.momentum_name(self.phase.part): self.phase.part} if self.step > 0 else {}

    def calibrate(self, images: Tensor) -> None:
        """Set the stack's input gain and α, and its momentum to zero."""
        self.network.stacks[self.phase.part].calibrate(self._below(images))
        self.parameter_store.zero_momentum(self.trained_stacks())

    def update(self, images: Tensor) -> Metrics:
        """Take one step on the stack's filters and α."""
        stack, rule = self.phase.part, self.rule(self.phase.part)
        report = self.parameter_store.step(stack, self._below(images), self.objective(stack), rule)
        return metrics_of([report], rule.rate, images.shape[0])

    def _below(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            for stack in self.network.stacks[: self.phase.part]:
                if stack.training:
                    stack.eval()  # the norms of frozen filters are then computed once
                images = stack(images)
        return images
