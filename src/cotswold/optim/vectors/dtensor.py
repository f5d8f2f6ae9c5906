"""Vectors that are sharded over ranks: DTensors, evenly split or not.

Knows: placements, one all-reduce per round. Does not know: methods, the objective, files.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from cotswold.errors import UserError
from cotswold.optim.vectors.base import Command
from cotswold.optim.vectors.local import TensorVectors


class DTensorVectors:
    """Named vectors laid out like a list of DTensors of one mesh.

    Ordinary tensors in the list are replicated on all ranks of the mesh. Commands touch only a rank's local
    part. The dots of a round are local sums in float64 and one all-reduce per mesh dimension, so all ranks
    read the same bits and decide alike. All ranks must run the same commands.

    Args:
        parts: the tensors of the first vector, at least one of them a DTensor.
        name: name of the first vector.

    Raises:
        UserError: without a DTensor, for several meshes, for pending sums (Partial), or on a rank outside the
            mesh.
    """

    def __init__(self, parts: Sequence[Tensor], name: str = "x") -> None:
        shared = [part for part in parts if isinstance(part, DTensor)]
        if not shared:
            raise UserError("the tensors include no DTensor; use TensorVectors")
        mesh = shared[0].device_mesh
        if any(part.device_mesh != mesh for part in shared):
            raise UserError("the DTensors are on several meshes; a vector needs one mesh")
        if any(place.is_partial() for part in shared for place in part.placements):
            raise UserError("a DTensor is a pending sum (Partial); redistribute it first")
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            raise UserError(
                "this rank is not in the mesh of the DTensors; only ranks of the mesh can make vectors"
            )
        local, counted = [], []
        for part in parts:
            if isinstance(part, DTensor):
                places = zip(coordinate, part.placements, strict=True)
                counted.append(all(place.is_shard() or at == 0 for at, place in places))
                local.append(part.to_local())
            else:
                counted.append(not any(coordinate))
                local.append(part)
        self._local = TensorVectors(local, name, counted)
        self._groups = mesh.get_all_groups()
        self._device = local[0].device

    def __getitem__(self, name: str) -> list[Tensor]:
        """Return this rank's parts of a vector, flattened."""
        return self._local[name]

    def make(self, name: str) -> list[Tensor]:
        """Return this rank's parts of a vector; create it as zeros if it does not exist.

        Args:
            name: name of the vector.
        """
        return self._local.make(name)

    @property
    def epsilon(self) -> float:
        """Relative precision: the distance from 1 to the next number."""
        return self._local.epsilon

    def run(self, commands: Sequence[Command]) -> list[float]:
        """Run commands in order, on all ranks together.

        Args:
            commands: the commands of one round, the same on all ranks.

        Returns:
            The results of the `Dot` commands over all ranks, in order.

        Raises:
            KeyError: if a command reads a vector that does not exist.
        """
        dots = self._local.run(commands)
        if not dots:
            return dots
        sums = torch.tensor(dots, dtype=torch.float64, device=self._device)
        for group in self._groups:  # one a dimension of the mesh
            dist.all_reduce(sums, group=group)
        return sums.tolist()
