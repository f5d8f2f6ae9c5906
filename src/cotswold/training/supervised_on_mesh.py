"""Supervised training by all ranks of a mesh.

Knows: which part of every picture, weight and momentum is this rank's. Does not know: how layers compute over
ranks (`mesh.partition`), files, clocks, the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from cotswold.checkpoint import Checkpoint, Piece, SealedPiece
from cotswold.geometry import Box, Partition
from cotswold.mesh import Mesh, local_map, partition
from cotswold.mesh.modules.parameters import own_box
from cotswold.recipe import Recipe
from cotswold.training.networks import LayerNetwork
from cotswold.training.supervised import LabelledHeldOut, Supervised


class SupervisedOnMesh(Supervised):
    """The strategy `supervised` on a grid of ranks; batches have this rank's `window_of` each picture."""

    def __init__(
        self,
        network: LayerNetwork,
        recipe: Recipe,
        epoch_steps: float,
        held_out: LabelledHeldOut,
        mesh: Mesh,
    ) -> None:
        torch.manual_seed(recipe.training.seed)  # a partition asks that ranks draw alike
        super().__init__(partition(network, mesh), recipe, epoch_steps, held_out)
        self._mesh, self._cuts = mesh, _cuts(recipe, mesh)
        self._drawn: dict[str, Tensor] = {}

    def scores(self, pictures: Tensor) -> Any:
        """Scores ``(image, class)``, whole on every rank."""
        return self.network(local_map(pictures, self._mesh, self._cuts))

    def tensors(self, phase: int, step: int) -> dict[str, Tensor]:
        """Nothing is whole on one rank."""
        return {}

    def apart(self, phase: int, step: int) -> Iterator[Piece | SealedPiece]:
        """This rank's parts of weights and momenta; what all ranks have alike is rank 0's."""
        if self._mesh.rank == 0:
            yield from super().apart(phase, step)
        for name, values in super().tensors(phase, step).items():
            part, box = _part(values)
            if box != Box.whole(tuple(values.shape)):
                if part.numel():
                    yield Piece(name, part, box, tuple(values.shape))
            elif self._mesh.rank == 0:
                yield Piece(name, part)

    def take_up(self, checkpoint: Checkpoint, phase: int, step: int) -> None:
        """Read this rank's parts of a checkpoint, whatever grid wrote it."""
        super().take_up(checkpoint, phase, step)
        found = super().tensors(phase, step)
        for name, values in found.items():
            checkpoint.read_into(name, *_part(values))
        self._drawn = {name: values for name, values in found.items() if name.startswith("random")}

    def restored(self, tensors: Mapping[str, Tensor], state: Mapping[str, object]) -> None:
        """Take over the random state and the memory of early stopping."""
        super().restored(self._drawn, state)


def window_of(recipe: Recipe, mesh: Mesh) -> Box:
    """What a rank reads of every picture."""
    return _cuts(recipe, mesh).box(mesh.rank)


def _cuts(recipe: Recipe, mesh: Mesh) -> Partition:
    return Partition.even((recipe.input.height, recipe.input.width), mesh.grid)


def _part(values: Tensor) -> tuple[Tensor, Box]:
    """What this rank has of a tensor, and where it lies in the whole."""
    if isinstance(values, DTensor):
        return values.to_local().detach(), own_box(values)
    return values.detach(), Box.whole(tuple(values.shape))
