"""The work of a replica that is a gang: the mean loss of a batch by a network that is cut over several ranks.

Knows: recipes, what a gang computes for a replica. Does not know: servers, how ranks are started and told
(`gang`, `launch.gang`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from cotswold import recipe as recipes
from cotswold.cluster.work import PortionSum
from cotswold.data import Store
from cotswold.geometry import Grid
from cotswold.launch import follow, lead
from cotswold.recipe.schema import DownpourTraining
from cotswold.training.flat import FlatModule
from cotswold.training.gang import GangWork, Rank, obey
from cotswold.training.losses import Loss, loss_of
from cotswold.training.networks import LayerNetwork
from cotswold.training.patterns import Patterns, StorePatterns
from cotswold.training.restore import supervised_network
from cotswold.training.ways import scale_to_norm_1
from cotswold.training.works import LayerWork


class LearningLayers(LayerWork):
    """Layers under a loss as they learn: dropout draws."""

    def __init__(self, network: LayerNetwork, loss: Loss, samples: Patterns) -> None:
        self.flat = FlatModule(network.train())
        self._loss, self._samples, self._held = loss, samples, None


class GangReplica(GangWork):
    """The leader's work, which is a replica's: `ReplicaWork`."""

    decay = 0.0
    """This times a weight is added to its gradient."""

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        """Add the gradient of these samples' mean loss."""
        whole = torch.zeros_like(gradient)
        found = self.add(samples, whole)
        gradient.add_(whole, alpha=1 / len(samples))
        if self.decay:
            gradient.add_(self.parameters, alpha=self.decay)
        return found


@contextmanager
def in_gang_replica(recipe: str, store: str, rows: str) -> Iterator[GangReplica]:
    """As `learning_works.in_replica`, for a process that leads the ranks of the recipe's `[mesh]`."""
    parsed = recipes.parse(recipe)
    mesh, training = parsed.mesh, parsed.training
    assert isinstance(training, DownpourTraining) and mesh.grid is not None, "a gang has a grid"
    grid, given = Grid.parse(mesh.grid), {"recipe": recipe, "store": store, "rows": rows}
    with lead(f"{__name__}:follow_replica", given, grid.size, timeout_seconds=mesh.timeout) as led:
        rank = Rank(_learning(recipe, store, rows), grid, led.ranks, mesh.in_flight)
        work = GangReplica(rank, led)
        work.decay = training.weight_decay
        yield work
        work.close()


def follow_replica(recipe: str, store: str, rows: str, place: Mapping[str, object]) -> None:
    """The life of another rank than the leader of `in_gang_replica`."""
    mesh = recipes.parse(recipe).mesh
    assert mesh.grid is not None, "a gang has a grid"
    with follow(place) as ranks:
        obey(Rank(_learning(recipe, store, rows), Grid.parse(mesh.grid), ranks, mesh.in_flight))


def _learning(recipe: str, store: str, rows: str) -> LearningLayers:
    torch.set_num_threads(1)
    parsed, opened = recipes.parse(recipe), Store(store)
    network = supervised_network(parsed, opened.outputs)
    assert isinstance(parsed.training, DownpourTraining), "others have no replicas"
    if parsed.training.unit_norm:
        scale_to_norm_1(network)
    return LearningLayers(network, loss_of(parsed), StorePatterns(opened, "train", Path(rows)))
