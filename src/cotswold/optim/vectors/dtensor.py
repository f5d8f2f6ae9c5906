"""Vectors of which every rank has a part: DTensors, cut evenly or not.

Knows: placements, one all-reduce a round. Does not know: methods, what is minimised, files.
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
    """Vectors like a list of DTensors of one mesh; ordinary tensors among them are the same on all its ranks.

    Commands touch a rank's own part alone. The dots of a round are local sums in float64 and one all-reduce,
    so all ranks read the same bits and decide alike. All ranks must run the same commands.
    """

    def __init__(self, parts: Sequence[Tensor], name: str = "x") -> None:
        """Raises UserError without a DTensor, for several meshes, or for parts that are pending sums."""
        shared = [part for part in parts if isinstance(part, DTensor)]
        if not shared:
            raise UserError("there is no DTensor among the tensors: use TensorVectors")
        mesh = shared[0].device_mesh
        if any(part.device_mesh != mesh for part in shared):
            raise UserError("the DTensors are on several meshes: a vector has one")
        if any(place.is_partial() for part in shared for place in part.placements):
            raise UserError("a DTensor is a pending sum (Partial): redistribute it first")
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            raise UserError("this rank is not in the mesh of the DTensors: only its ranks make vectors")
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
        """This rank's parts of a vector, flat."""
        return self._local[name]

    def make(self, name: str) -> list[Tensor]:
        """This rank's parts of a vector, made of zeros where it is new."""
        return self._local.make(name)

    @property
    def epsilon(self) -> float:
        """From 1 to the next number."""
        return self._local.epsilon

    def run(self, commands: Sequence[Command]) -> list[float]:
        """Do as commanded; the dots over all ranks."""
        dots = self._local.run(commands)
        if not dots:
            return dots
        sums = torch.tensor(dots, dtype=torch.float64, device=self._device)
        for group in self._groups:  # one a dimension of the mesh
            dist.all_reduce(sums, group=group)
        return sums.tolist()
