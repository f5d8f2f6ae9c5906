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
    from cotswold.mesh.ranks.replicas import ReplicaAxis
    from cotswold.training.metrics.metric_set import MetricSet
    from cotswold.training.strategies.base import Share


@dataclass(frozen=True)
class RankContext:
    """One process of a job.

    With a ``mesh`` the process is one of several ranks, which make the same calls in the same order. With
    ``replicas`` there are several such meshes, or processes without a mesh; each trains with its own part of
    a batch. ``ranks`` carries rare, slow exchanges such as checkpoints. ``local_size`` ranks share this
    host; this process is ``local_rank`` among them.
    """

    ranks: Ranks = ALONE
    mesh: Mesh | None = None
    local_rank: int = 0
    local_size: int = 1
    replicas: ReplicaAxis | None = None

    @property
    def is_main(self) -> bool:
        """True for the process that writes shared output."""
        return self.ranks.rank == 0

    def with_local_device(self, recipe: Recipe) -> Recipe:
        """Return the recipe with this rank's device: the ranks of a host use its CUDA devices in turn."""
        if self.ranks.size == 1 or not recipe.training.device.startswith("cuda"):
            return recipe
        device = f"cuda:{self.local_rank % max(torch.cuda.device_count(), 1)}"
        return recipe.model_copy(update={"training": recipe.training.model_copy(update={"device": device})})

    def pop_bytes_sent(self) -> int:
        """Return the bytes that the ranks sent each other since the last call."""
        of_grid = 0 if self.mesh is None else self.mesh.take_bytes_sent()
        if self.replicas is None:
            return of_grid
        return of_grid * self.replicas.count + self.replicas.take_bytes_sent()

    @property
    def share(self) -> Share:
        """The part of each batch that this process computes."""
        from cotswold.training.strategies.base import WHOLE, Share

        return WHOLE if self.replicas is None else Share(self.replicas.index, self.replicas.count)

    def validation_share(self, metrics: MetricSet) -> Share:
        """Return the part of the validation batches that this process computes.

        A replica computes all of them if it cannot merge the states of ``metrics``.

        Args:
            metrics: The metrics of the validation.
        """
        from cotswold.training.strategies.base import WHOLE

        return self.share if metrics.can_merge else WHOLE

    @property
    def writes_state(self) -> bool:
        """True for a rank of the first replica; the others have the same weights, and write no tensors."""
        return self.replicas is None or self.replicas.index == 0

    def all_reduce_max(self, flags: Sequence[int]) -> list[int]:
        """Return the maximum over all ranks of each flag (an all-reduce with max).

        Args:
            flags: The flags of this rank.
        """
        if (self.mesh is None or self.mesh.size == 1) and self.replicas is None:
            return list(flags)
        largest = torch.tensor(flags, device="cpu")
        if self.mesh is not None:
            self.mesh.largest_in_place(largest)
        if self.replicas is not None:
            self.replicas.largest_in_place(largest)
        return [int(each) for each in largest]


SINGLE_PROCESS = RankContext()
"""The context of a process that trains alone."""
