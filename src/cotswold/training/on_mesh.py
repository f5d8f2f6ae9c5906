"""A network of stacks that is trained by all ranks of a mesh.

Knows: each rank's share of every stack, what of a checkpoint is its own. Does not know: the order of
training, how ranks were started.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch

from cotswold import ops
from cotswold.checkpoint import Checkpoint, Piece
from cotswold.geometry import Box
from cotswold.mesh import Mesh, TrainedStack
from cotswold.recipe import Recipe
from cotswold.training.home import Momenta


@dataclass(frozen=True)
class MeshNetwork:
    """The stacks, from the input upwards, as a rank has them."""

    stacks: list[TrainedStack]


class OnMesh:
    """The home of a recipe's stacks on a mesh; every method is called by all ranks, in one order."""

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
        self._writes_scalars = mesh.rank == 0

    @property
    def window(self) -> Box:
        """What this rank reads of every picture."""
        return self.network.stacks[0].share.window

    def rest(self, stacks: Collection[int]) -> None:
        """See `Home`."""
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
        """See `Home`."""
        return self.network.stacks[stack].step(
            batch, objective, rule, upstream=upstream, input_gradient=input_gradient
        )

    def tensors(self, momenta: Momenta) -> dict[str, torch.Tensor]:
        """Nothing is whole on one rank."""
        return {}

    def apart(self, momenta: Momenta) -> Iterator[Piece]:
        """This rank's parts of filters and norms, and of momenta; what all ranks have alike is rank 0's."""
        for piece in self._pieces(momenta):
            alike = piece.box == Box.whole(())
            if self._writes_scalars if alike else piece.tensor.numel():
                yield piece

    def take_up(self, checkpoint: Checkpoint, momenta: Momenta) -> None:
        """Read this rank's parts of a checkpoint, whatever grid wrote it."""
        for piece in self._pieces(momenta):
            checkpoint.read_into(piece.name, piece.tensor, piece.box)

    def _pieces(self, momenta: Momenta) -> Iterator[Piece]:
        for index, stack in enumerate(self.network.stacks):
            for name, tensor, box, shape in stack.parts():
                yield Piece(f"network.stacks.{index}.{name}", tensor, box, shape)
        for name, index in momenta.items():
            yield Piece(name, *self.network.stacks[index].moving())
