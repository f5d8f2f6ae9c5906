"""The rank context: the ranks that train a model together, as a job sees them.

Knows: the mesh, how ranks agree on a decision. Does not know: how ranks were started, networks.
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
class RankContext:
    """One process of a job.

    With a ``mesh`` the process is one of several ranks, which make the same calls in the same order.
    ``ranks`` carries rare, slow exchanges such as checkpoints. ``local_size`` ranks share this host; this
    process is ``local_rank`` among them.
    """

    ranks: Ranks = ALONE
    mesh: Mesh | None = None
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_main(self) -> bool:
        """True for the process that writes shared output."""
        return self.ranks.rank == 0

    def with_local_device(self, recipe: Recipe) -> Recipe:
        """Return the recipe with this rank's device: the ranks of a host use its CUDA devices in turn."""
        if self.mesh is None or not recipe.training.device.startswith("cuda"):
            return recipe
        device = f"cuda:{self.local_rank % max(torch.cuda.device_count(), 1)}"
        return recipe.model_copy(update={"training": recipe.training.model_copy(update={"device": device})})

    def pop_bytes_sent(self) -> int:
        """Return the bytes that the ranks sent each other since the last call."""
        return 0 if self.mesh is None else self.mesh.take_bytes_sent()

    def all_reduce_max(self, flags: Sequence[int]) -> list[int]:
        """Return the maximum over all ranks of each flag (an all-reduce with max)."""
        if self.mesh is None or self.mesh.size == 1:
            return list(flags)
        return [int(each) for each in self.mesh.largest_in_place(torch.tensor(flags, device="cpu"))]


SINGLE_PROCESS = RankContext()
"""The context of a process that trains alone."""
