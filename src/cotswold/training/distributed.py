"""The ranks that train a network together, as a job sees them.

Knows: the mesh of maps, whom to ask before a decision that all must take alike. Does not know: how ranks were
started, networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from cotswold.host import ALONE, Ranks
from cotswold.recipe import Recipe

if TYPE_CHECKING:
    from cotswold.mesh import Mesh


@dataclass(frozen=True)
class Team:
    """One process of a job; with a ``mesh`` it is one of many, which call everything in one order.

    ``ranks`` exchange what is seldom and may take long (checkpoints); ``local_size`` of them share this host,
    of which this is ``local_rank``.
    """

    ranks: Ranks = ALONE
    mesh: Mesh | None = None
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes what one process writes for all."""
        return self.ranks.rank == 0

    def placed(self, recipe: Recipe) -> Recipe:
        """The recipe on this rank's own device: ranks of a host take its CUDA devices in turn."""
        if self.mesh is None or not recipe.training.device.startswith("cuda"):
            return recipe
        device = f"cuda:{self.local_rank % max(torch.cuda.device_count(), 1)}"
        return recipe.model_copy(update={"training": recipe.training.model_copy(update={"device": device})})

    def take_count(self) -> int:
        """Bytes that the ranks sent each other since this was last asked."""
        return 0 if self.mesh is None else self.mesh.take_bytes_sent()

    def agree(self, wishes: Sequence[int]) -> list[int]:
        """The greatest of all ranks' wishes, one by one."""
        if self.mesh is None or self.mesh.size == 1:
            return list(wishes)
        return [int(each) for each in self.mesh.largest_in_place(torch.tensor(wishes, device="cpu"))]


SOLO = Team()
"""A process that trains alone."""
