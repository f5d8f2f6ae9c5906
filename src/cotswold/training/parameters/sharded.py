"""A network of stacks that is trained by all ranks of a mesh.

Knows: each rank's share of every stack, what of a checkpoint is its own. Does not know: the order of
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
    """The stacks, from the input upwards, as a rank has them."""

    stacks: list[TrainedStack]


class HeldOnMesh:
    """The holder of a recipe's stacks on a mesh; every method is called by all ranks, in one order."""

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
        """What this rank reads of every picture."""
        return self.network.stacks[0].share.window

    def rest(self, stacks: Collection[int]) -> None:
        """Momenta of these stacks are zero from here on; those of others are freed."""
        for index, stack in enumerate(self.network.stacks):
            if index in stacks:
                stack.rest()
            else:
                stack.let_go()

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
        """One step of SGD with momentum on a stack; the report is of the state before it."""
        return self.network.stacks[stack].step(
            batch, objective, rule, upstream=upstream, input_gradient=input_gradient
        )

    def state_dict(self, momenta: Momenta) -> StateDict:
        """This rank's parts of filters, norms and momenta, and the scalars that all ranks have alike."""
        values: dict[str, StateValue] = {}
        for index, stack in enumerate(self.network.stacks):
            for name, tensor, box, shape in stack.parts():
                whole = box == Box.whole(())
                values[f"network.stacks.{index}.{name}"] = tensor if whole else TensorPart(tensor, box, shape)
        for name, index in momenta.items():
            values[name] = TensorPart(*self.network.stacks[index].moving())
        return values
