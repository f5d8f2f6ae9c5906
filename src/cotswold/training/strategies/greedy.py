"""Greedy training: one stack after another, with the earlier ones frozen.

Knows: the order of stacks and the call that trains a stack. Does not know: files, clocks, the terminal, how
outputs of frozen stacks are kept (`frozen_outputs`).
Source: Coates et al. 2013, section 3; Hinton et al. 2006.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cotswold.run import Metrics
from cotswold.training.jobs.flops import greedy_flops
from cotswold.training.parameters.base import Momenta, Stack
from cotswold.training.strategies.base import Batch
from cotswold.training.strategies.frozen_outputs import FrozenOutputs
from cotswold.training.strategies.stacks import StackStrategy, metrics_of, validate_stacks


class Greedy(StackStrategy):
    """The strategy `greedy`: each phase trains one stack."""

    outputs: FrozenOutputs | None = None
    """Keeps the outputs of the frozen stacks; None computes them in each step."""

    def enter(self, phase: int, step: int) -> None:
        """Move to a step of a phase; another phase has other frozen stacks."""
        if self.outputs is not None and phase != self._phase:
            self.outputs.start()
        super().enter(phase, step)

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

    def update(self, batch: Batch) -> Metrics:
        """Take one step on the stack's filters and α."""
        stack, rule = self.phase.part, self.rule(self.phase.part)
        if self.outputs is None or stack == 0:
            below = self._below(batch.inputs)
        else:
            below = self.outputs.of_batch(batch, self._below, self._versions, self.steps - self.step)
        report = self.parameter_store.step(stack, below, self.objective(stack), rule)
        return metrics_of([report], rule.rate, batch.inputs.shape[0])

    def validate(self) -> Metrics | None:
        """Return the objective of the phase's stack on the validation images."""
        if self.outputs is None or self.phase.part == 0:
            return super().validate()
        samples = self.outputs.of_validation(self.validation(), self._below, self._versions)
        return validate_stacks([self.network.stacks[self.phase.part]], [0], samples)

    def _below(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            for stack in self.network.stacks[: self.phase.part]:
                if stack.training:
                    stack.eval()  # the norms of frozen filters are then computed once
                images = stack(images)
        return images

    def _versions(self) -> tuple[int, ...]:
        """Return torch's counts of the changes of the frozen weights, such as by an average of weights."""
        found = (_vars_of(stack) for stack in self.network.stacks[: self.phase.part])
        return tuple(each._version for stack in found for each in stack)


def _vars_of(stack: Stack) -> list[Tensor]:
    """Return the tensors of a stack that its output depends on."""
    values = (getattr(stack, name, None) for name in ("filters", "norms", "alpha", "gain"))
    return [each for each in values if isinstance(each, Tensor)]
