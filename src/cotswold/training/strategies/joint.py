"""Joint training: all stacks at once, the sum of their objectives, back-propagated from the top.

Knows: how gradients of the losses above reach a stack. Does not know: files, clocks, the terminal. Source:
Coates et al. 2013, section 5.1 (the scaling runs) and footnote 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cotswold.run import Metrics
from cotswold.training.jobs.flops import joint_flops
from cotswold.training.parameters.base import Momenta
from cotswold.training.strategies.base import Batch
from cotswold.training.strategies.stacks import StackStrategy, metrics_of


class Joint(StackStrategy):
    """The strategy `joint`: every step trains all stacks."""

    @property
    def flops(self) -> int:
        """FLOPs per image: each stack's update, its forward pass, and the gradient through it."""
        return joint_flops([stack.geometry for stack in self.network.stacks])

    def describe(self) -> Mapping[str, object]:
        """Return the network's maps and weights."""
        stacks = [stack.geometry for stack in self.network.stacks]
        return {
            "phase": "all",
            "input": str(stacks[0].input),
            "output": str(stacks[-1].output),
            "parameters": self.parameters,
        }

    def trained_stacks(self) -> Sequence[int]:
        """Return all stacks, from the lowest."""
        return range(len(self.network.stacks))

    @staticmethod
    def momentum_name(stack: int) -> str:
        """Return a separate name for each stack."""
        return f"momentum.{stack}"

    def momenta(self) -> Momenta:
        """Return the momenta of all stacks."""
        return {self.momentum_name(index): index for index in self.trained_stacks()}

    def calibrate(self, images: Tensor) -> None:
        """Set each stack's input gain and α, from the bottom up, and all momenta to zero."""
        self.parameter_store.zero_momentum(self.trained_stacks())
        with torch.no_grad():
            for stack in self.network.stacks:
                stack.calibrate(images)
                images = stack(images)

    def update(self, batch: Batch) -> Metrics:
        """Take one step on all stacks, from the top down; all gradients are those before the step."""
        inputs, reports = [batch.inputs], []
        with torch.no_grad():
            for stack in self.network.stacks[:-1]:
                inputs.append(stack(inputs[-1]))
        upstream: Tensor | None = None
        for index in reversed(self.trained_stacks()):
            report = self.parameter_store.step(
                index,
                inputs.pop(),
                self.objective(index),
                self.rule(index),
                upstream=upstream,
                input_gradient=index > 0,
            )
            upstream = report.input_gradient
            reports.append(report)
        return metrics_of(reports[::-1], self.rule(0).rate, batch.inputs.shape[0])
