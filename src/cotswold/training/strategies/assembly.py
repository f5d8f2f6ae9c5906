"""The parts that every strategy builder assembles: network, batches, trainer.

Knows: the context of a run. Does not know: what a step computes.
"""

from __future__ import annotations

from cotswold.geometry import Box
from cotswold.training.data.augmentation import augmentation_of
from cotswold.training.data.store_batches import TrainBatches
from cotswold.training.jobs.restore import supervised_network
from cotswold.training.models import LayerNetwork
from cotswold.training.strategies.base import Batches, Strategy
from cotswold.training.strategies.registry import TrainContext
from cotswold.training.trainers.sync import SyncTrainer


def make_trainer(strategy: Strategy, batches: Batches, context: TrainContext) -> SyncTrainer:
    """Return the trainer of a strategy with synchronous steps."""
    return SyncTrainer(
        strategy, batches, context.recorder, context.rank_context, is_served=context.recipe.is_served
    )


def layers_of(context: TrainContext) -> LayerNetwork:
    """Return the layers of the recipe, with one output for each class (or regression target) of the data."""
    return supervised_network(context.recipe, context.store.outputs)


def batches_of(context: TrainContext, box: Box | None = None) -> TrainBatches:
    """Return endless shuffled batches of the training samples, or of a window (y, x) of each."""
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
        )
    )
