"""Vectors that every rank holds whole, as under DistributedDataParallel: all ranks read the same dots.

Knows: a process group, one gather per round. Does not know: methods, closures, DTensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch import distributed as dist

from cotswold.errors import RankError
from cotswold.optim.vectors.base import Command, Dot
from cotswold.optim.vectors.local import TensorVectors

TOLERANCE = 1e-3
"""Largest relative difference between ranks of the squared norm of one vector."""


class ReplicaVectors(TensorVectors):
    """A copy of every vector on every rank of a group; all ranks use the dots of rank 0.

    Copies may differ in their last bits, because ranks add up gradients in another order. Decisions must not.

    Raises UserError as `TensorVectors` does.
    """

    def __init__(self, parts: Tensor | Sequence[Tensor], group: dist.ProcessGroup) -> None:
        super().__init__(parts)
        self._group, self._compared = group, False

    def run(self, commands: Sequence[Command]) -> list[float]:
        """Run the commands. Raises RankError on all ranks if the first dots show different vectors."""
        dots = super().run(commands)
        if not dots:
            return dots
        of_ranks = all_gather_values(dots, self._group, self._template[0].device)
        if not self._compared:
            self._compare(commands, of_ranks)
            self._compared = True
        return of_ranks[0]

    def _compare(self, commands: Sequence[Command], of_ranks: Sequence[Sequence[float]]) -> None:
        """Compare squared norms only: other inner products may be pure rounding."""
        squares = [command.left == command.right for command in commands if isinstance(command, Dot)]
        for rank, others in enumerate(of_ranks):
            for first, other, square in zip(of_ranks[0], others, squares, strict=True):
                if square and abs(first - other) > TOLERANCE * max(abs(first), abs(other)):
                    raise RankError(
                        f"rank {rank} has another gradient than rank 0 (squared norm {other:.6g}, not "
                        f"{first:.6g}): wrap the module in DistributedDataParallel, or pass group=None if "
                        "every rank minimises for itself"
                    )


def all_gather_values(
    values: Sequence[float], group: dist.ProcessGroup, device: torch.device
) -> list[list[float]]:
    """Return the values of every rank, by rank; the same bits on all ranks."""
    own = torch.tensor(values, dtype=torch.float64, device=device)
    found = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, own, group=group)
    return [each.tolist() for each in found]
