"""Builders of strategy `supervised`: in memory, and sharded over ranks.

Knows: the network, the loss and the batches. Does not know: what a step computes.
"""

from __future__ import annotations

import torch

from cotswold.training.data.store_batches import ValidationBatches
from cotswold.training.losses import loss_of
from cotswold.training.metrics.held_out import metrics_of
from cotswold.training.optimizers import on_partition
from cotswold.training.strategies.assembly import batches_of, layers_of, make_trainer, replicate
from cotswold.training.strategies.registry import TrainContext
from cotswold.training.strategies.supervised import SupervisedStrategy, supervised_training
from cotswold.training.trainers.sync import SyncTrainer


def in_memory(context: TrainContext) -> SyncTrainer:
    """Build the trainer with all weights in memory."""
    batches, loss = batches_of(context), loss_of(context.recipe)
    metrics = metrics_of(context.recipe, loss, context.components.metrics, context.store)
    share = context.rank_context.validation_share(metrics)
    strategy = SupervisedStrategy(
        layers_of(context),
        supervised_training(context.recipe),
        loss,
        context.epochs,
        batches.epoch_steps,
        ValidationBatches(context.store, context.recipe, share=share).batches,
        context.components,
    )
    strategy.metrics = metrics
    replicate(strategy, context.recipe, context.rank_context, context.exit_stack)
    return make_trainer(strategy, batches, context)


def build_sharded(context: TrainContext) -> SyncTrainer:
    """Build the trainer of one rank of a mesh, with its shard of the network."""
    from cotswold.geometry import Partition
    from cotswold.mesh import local_map, partition
    from cotswold.training.strategies.supervised_sharded import SupervisedSharded

    mesh, shape = context.mesh, context.recipe.input
    windows = Partition.even((shape.height, shape.width), mesh.grid)
    box = windows.box(mesh.rank)
    batches, network, loss = batches_of(context, box), layers_of(context), loss_of(context.recipe)
    metrics = metrics_of(context.recipe, loss, context.components.metrics, context.store)
    share = context.rank_context.validation_share(metrics)
    torch.manual_seed(context.recipe.training.seed)  # all ranks of a partition must draw alike
    partitioned = partition(network, mesh)
    components = on_partition(context.components, network, partitioned)
    strategy = SupervisedSharded(
        partitioned,
        supervised_training(context.recipe),
        loss,
        context.epochs,
        batches.epoch_steps,
        ValidationBatches(context.store, context.recipe, box=box, share=share).batches,
        components=components,
        spread=lambda inputs: local_map(inputs, mesh, windows),
    )
    strategy.metrics = metrics
    replicate(strategy, context.recipe, context.rank_context, context.exit_stack)
    return make_trainer(strategy, batches, context)
