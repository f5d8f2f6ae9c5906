"""A network of stacks sharded over the ranks of a mesh.

Knows: each rank's shard of every stack, this rank's part of a checkpoint. Does not know: the order of
training, how ranks were started.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

from cotswold import ops
from cotswold.checkpoint import StateDict, StateValue, TensorPart
from cotswold.geometry import Box
from cotswold.mesh import Mesh, TrainedStack
from cotswold.recipe import Recipe
from cotswold.training.parameters.base import Momenta


@dataclass(frozen=True)
class MeshNetwork:
    """The stacks, from the lowest, with this rank's shards."""

    stacks: list[TrainedStack]


class ShardedParameters:
    """The parameter store of a recipe's stacks on a mesh; all ranks call every method in the same order."""

    def __init__(self, recipe: Recipe, mesh: Mesh) -> None:
        stacks: list[TrainedStack] = []
        below: tuple[Box, ...] | None = None
        for index, geometry in enumerate(recipe.stack_geometries()):
            stacks.append(
                TrainedStack(
                    mesh,
                    geometry,
                    recipe.sparsity(index),
                    recipe.stack_objective.epsilon,
                    recipe.training.seed,
                    index,
                    below=below,
                    device=recipe.training.device,
                )
            )
            below = stacks[-1].share.partition.output.boxes
        self.network = MeshNetwork(stacks)

    @property
    def window(self) -> Box:
        """The window of every image that this rank reads."""
        return self.network.stacks[0].share.window

    def zero_momentum(self, stacks: Collection[int]) -> None:
        """Set the momenta of these stacks to zero, and free the others."""
        for index, stack in enumerate(self.network.stacks):
            if index in stacks:
                stack.zero_momentum()
            else:
                stack.discard_momentum()

    def step(
        self,
        stack: int,
        batch: torch.Tensor,
        objective: ops.StackObjective,
        rule: ops.StepRule,
        *,
        upstream: torch.Tensor | None = None,
        input_gradient: bool = False,
    ) -> ops.StackReport:
        """Take one step of SGD with momentum on a stack; the report describes the state before it."""
        return self.network.stacks[stack].step(
            batch, objective, rule, upstream=upstream, input_gradient=input_gradient
        )

    def state_dict(self, momenta: Momenta) -> StateDict:
        """Return this rank's parts of filters, norms and momenta, and the scalars common to all ranks."""
        values: dict[str, StateValue] = {}
        for index, stack in enumerate(self.network.stacks):
            for name, tensor, box, shape in stack.parts():
                whole = box == Box.whole(())
                values[f"network.stacks.{index}.{name}"] = tensor if whole else TensorPart(tensor, box, shape)
        for name, index in momenta.items():
            values[name] = TensorPart(*self.network.stacks[index].momentum_part())
        return values
