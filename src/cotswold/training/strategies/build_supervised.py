"""Builders of strategy `supervised`: in memory, and sharded over ranks.

Knows: the network, the loss and the batches. Does not know: what a step computes.
"""

from __future__ import annotations

import torch

from cotswold.training.data.store_batches import ValidationPictures
from cotswold.training.losses import loss_of
from cotswold.training.strategies.assembly import batches_of, driven, layers_of
from cotswold.training.strategies.registry import Setting
from cotswold.training.strategies.supervised import Supervised, supervised_training
from cotswold.training.trainers.sync import Synchronous


def in_memory(setting: Setting) -> Synchronous:
    """Build the trainer with all weights in memory."""
    batches = batches_of(setting)
    strategy = Supervised(
        layers_of(setting),
        supervised_training(setting.recipe),
        loss_of(setting.recipe),
        setting.epochs,
        batches.epoch_steps,
        ValidationPictures(setting.store, setting.recipe).batches,
    )
    return driven(strategy, batches, setting)


def on_mesh(setting: Setting) -> Synchronous:
    """Build the trainer of one rank of a mesh, with its shard of the network."""
    from cotswold.geometry import Partition
    from cotswold.mesh import local_map, partition
    from cotswold.training.strategies.supervised_on_mesh import SupervisedOnMesh

    mesh, shape = setting.mesh, setting.recipe.input
    windows = Partition.even((shape.height, shape.width), mesh.grid)
    box = windows.box(mesh.rank)
    batches, network = batches_of(setting, box), layers_of(setting)
    torch.manual_seed(setting.recipe.training.seed)  # all ranks of a partition must draw alike
    strategy = SupervisedOnMesh(
        partition(network, mesh),
        supervised_training(setting.recipe),
        loss_of(setting.recipe),
        setting.epochs,
        batches.epoch_steps,
        ValidationPictures(setting.store, setting.recipe, box=box).batches,
        spread=lambda inputs: local_map(inputs, mesh, windows),
    )
    return driven(strategy, batches, setting)
