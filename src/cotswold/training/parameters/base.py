"""Where the filters and momenta of stacks are while they are trained.

Knows: a network of stacks and the momenta beside it, in memory. Does not know: the order of training;
`training.parameters.offload` has the holder on a disk.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from cotswold import ops
from cotswold.checkpoint import StateDict
from cotswold.geometry import StackGeometry
from cotswold.nn import StackNetwork
from cotswold.training.models import network_tensors

Momenta = Mapping[str, int]
"""The names under which a checkpoint has momenta, and the stacks whose they are."""


class Stack(Protocol):
    """A stack as strategies see it; maps are those of this process, the whole or its part."""

    @property
    def geometry(self) -> StackGeometry:
        """The whole stack's maps and windows."""
        ...

    @property
    def objective_settings(self) -> ops.StackObjective:
        """λ and ε."""
        ...

    @property
    def training(self) -> bool:
        """Whether the norms of its filters are computed anew at each use."""
        ...

    def train(self) -> object:
        """Compute norms anew at each use."""
        ...

    def eval(self) -> object:
        """Let recorded norms serve."""
        ...

    def __call__(self, x: Tensor, /) -> Tensor:
        """The map that the next stack reads."""
        ...

    def calibrate(self, x: Tensor) -> None:
        """Set gain and α from a batch."""
        ...

    def objective_parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The objective of the whole, and its two terms."""
        ...


class Network(Protocol):
    """Stacks on top of each other."""

    @property
    def stacks(self) -> Sequence[Stack]:
        """From the input upwards."""
        ...


class ParameterHolder(Protocol):
    """A network and the momenta of the stacks that move."""

    @property
    def network(self) -> Network:
        """The stacks, from the input upwards."""
        ...

    def rest(self, stacks: Collection[int]) -> None:
        """Bring the momenta of these stacks to rest; those of others are let go."""
        ...

    def step(
        self,
        stack: int,
        batch: Tensor,
        objective: ops.StackObjective,
        rule: ops.StepRule,
        *,
        upstream: Tensor | None = None,
        input_gradient: bool = False,
    ) -> ops.StackReport:
        """`ops.step` on one stack."""
        ...

    def state_dict(self, momenta: Momenta) -> StateDict:
        """The live tensors of the network and of these momenta, to be saved or filled in place."""
        ...


class HeldInMemory:
    """The plain holder: everything is in memory."""

    def __init__(self, network: StackNetwork) -> None:
        self.network = network
        self._momenta: dict[int, Tensor] = {}

    def rest(self, stacks: Collection[int]) -> None:
        """Momenta of these stacks are zero from here on; those of others are freed."""
        self._momenta = {stack: momentum for stack, momentum in self._momenta.items() if stack in stacks}
        for stack in stacks:
            self._momentum(stack).zero_()

    def step(
        self,
        stack: int,
        batch: Tensor,
        objective: ops.StackObjective,
        rule: ops.StepRule,
        *,
        upstream: Tensor | None = None,
        input_gradient: bool = False,
    ) -> ops.StackReport:
        """One step of SGD with momentum on a stack; the report is of the state before it."""
        moved = self.network.stacks[stack]
        return ops.stack_step(
            moved.state(self._momentum(stack)),
            batch,
            moved.geometry,
            objective,
            rule,
            upstream=upstream,
            input_gradient=input_gradient,
        )

    def state_dict(self, momenta: Momenta) -> StateDict:
        """The live tensors of the network and of these momenta, to be saved or filled in place."""
        moving = {name: self._momentum(stack) for name, stack in momenta.items()}
        return {**network_tensors(self.network), **moving}

    def _momentum(self, stack: int) -> Tensor:
        if stack not in self._momenta:
            self._momenta[stack] = torch.zeros_like(self.network.stacks[stack].filters)
        return self._momenta[stack]
