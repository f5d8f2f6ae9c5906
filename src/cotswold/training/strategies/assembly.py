"""The parts that every strategy builder assembles: network, batches, trainer.

Knows: the context of a run. Does not know: what a step computes.
"""

from __future__ import annotations

from contextlib import ExitStack

from cotswold.geometry import Box
from cotswold.mesh.modules.sync_batchnorm import StatisticsRanks
from cotswold.mesh.modules.torch_modules import has_sync_batchnorm
from cotswold.recipe import Recipe
from cotswold.training.data.augmentation import augmentation_of
from cotswold.training.data.store_batches import TrainBatches
from cotswold.training.distributed import RankContext
from cotswold.training.jobs.restore import supervised_network
from cotswold.training.models import LayerNetwork
from cotswold.training.strategies.base import Batches, Strategy
from cotswold.training.strategies.registry import TrainContext
from cotswold.training.strategies.replicated import Replication
from cotswold.training.strategies.supervised import SupervisedStrategy
from cotswold.training.trainers.sync import SyncTrainer


def make_trainer(strategy: Strategy, batches: Batches, context: TrainContext) -> SyncTrainer:
    """Return the trainer of a strategy with synchronous steps.

    Args:
        strategy: The strategy.
        batches: The training batches, as from `batches_of`.
        context: The objects of the run.
    """
    return SyncTrainer(
        strategy, batches, context.recorder, context.rank_context, is_served=context.recipe.is_served
    )


def layers_of(context: TrainContext) -> LayerNetwork:
    """Return the layers of the recipe, with one output for each class (or regression target) of the data.

    Args:
        context: The objects of the run.
    """
    return supervised_network(context.recipe, context.store.outputs)


def replicate(
    strategy: SupervisedStrategy, recipe: Recipe, rank_context: RankContext, exit_stack: ExitStack
) -> None:
    """Join a strategy to its replicas, if the run has several, until ``exit_stack`` closes."""
    replicas = rank_context.replicas
    if replicas is None:
        return
    statistics = None
    if recipe.mesh.sync_batchnorm or has_sync_batchnorm(strategy.network):
        statistics = StatisticsRanks(replicas, rank_context.mesh)
    strategy.replication = Replication(
        replicas,
        rank_context.ranks,
        strategy.network,
        recipe.training.seed,
        statistics,
        rank_context.mesh,
    )
    exit_stack.callback(strategy.replication.buckets.remove)


def batches_of(context: TrainContext, box: Box | None = None) -> TrainBatches:
    """Return endless shuffled batches of the training samples, or of a window (y, x) of each.

    Args:
        context: The objects of the run.
        box: The window (default: whole images).
    """
    training, augmentation = context.recipe.training, augmentation_of(context.recipe, context.store)
    feed = None
    if context.recipe.is_served:
        from cotswold.data.loading.served_store import augmentation_to_json
        from cotswold.training.data.data_servers import batch_source_of

        feed = batch_source_of(context, augmentation_to_json(augmentation), box)
    return context.exit_stack.enter_context(
        TrainBatches(
            context.store,
            training.batch_size,
            training.seed,
            training.device,
            box=box,
            augmentation=augmentation,
            feed=feed,
            share=context.rank_context.share,
        )
    )
