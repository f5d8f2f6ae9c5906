"""The parameter store: where the filters and momenta of stacks are kept during training.

Knows: a network of stacks and its momenta, in memory. Does not know: the order of training;
`training.parameters.offload` has the store on disk.
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
"""Names of momenta in a checkpoint, and the stacks to which they belong."""


class Stack(Protocol):
    """A stack as strategies see it; maps are those of this process, whole or partitioned."""

    @property
    def geometry(self) -> StackGeometry:
        """The maps and windows of the whole stack."""
        ...

    @property
    def objective_settings(self) -> ops.StackObjective:
        """λ and ε."""
        ...

    @property
    def training(self) -> bool:
        """True if the norms of the filters are computed at each use."""
        ...

    def train(self) -> object:
        """Compute norms at each use."""
        ...

    def eval(self) -> object:
        """Record the norms and reuse them."""
        ...

    def __call__(self, x: Tensor, /) -> Tensor:
        """Return the map that the next stack reads."""
        ...

    def calibrate(self, x: Tensor) -> None:
        """Set gain and α from a batch."""
        ...

    def objective_parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the objective of the whole stack, and its two terms."""
        ...


class Network(Protocol):
    """Stacks in sequence."""

    @property
    def stacks(self) -> Sequence[Stack]:
        """The stacks, from the lowest."""
        ...


class ParameterStore(Protocol):
    """A network and the momenta of the stacks in training."""

    @property
    def network(self) -> Network:
        """The network, with its stacks from the lowest."""
        ...

    def zero_momentum(self, stacks: Collection[int]) -> None:
        """Set the momenta of these stacks to zero, and free the others."""
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
        """Apply `ops.stack_step` to one stack."""
        ...

    def state_dict(self, momenta: Momenta) -> StateDict:
        """Return the live tensors of the network and of these momenta, to be saved or filled in place."""
        ...


class InMemoryParameters:
    """The parameter store with everything in memory."""

    def __init__(self, network: StackNetwork) -> None:
        self.network = network
        self._momenta: dict[int, Tensor] = {}

    def zero_momentum(self, stacks: Collection[int]) -> None:
        """Set the momenta of these stacks to zero, and free the others."""
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
        """Take one step of SGD with momentum on a stack; the report describes the state before it."""
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
        """Return the live tensors of the network and of these momenta, to be saved or filled in place."""
        moving = {name: self._momentum(stack) for name, stack in momenta.items()}
        return {**network_tensors(self.network), **moving}

    def _momentum(self, stack: int) -> Tensor:
        if stack not in self._momenta:
            self._momenta[stack] = torch.zeros_like(self.network.stacks[stack].filters)
        return self._momenta[stack]
