"""The parts that every strategy builder assembles: network, batches, trainer.

Knows: the train context of a run. Does not know: what a step computes.
"""

from __future__ import annotations

from cotswold.geometry import Box
from cotswold.training.data.store_batches import TrainingPictures
from cotswold.training.data.varying import varying_of
from cotswold.training.jobs.restore import supervised_network
from cotswold.training.models import LayerNetwork
from cotswold.training.strategies.base import Batches, Strategy
from cotswold.training.strategies.registry import Setting
from cotswold.training.trainers.sync import Synchronous


def driven(strategy: Strategy, batches: Batches, setting: Setting) -> Synchronous:
    """Return the trainer of a strategy with synchronous steps."""
    return Synchronous(strategy, batches, setting.recorder, setting.team, is_served=setting.recipe.is_served)


def layers_of(setting: Setting) -> LayerNetwork:
    """Return the layers of the recipe, with one output for each class (or regression target) of the data."""
    return supervised_network(setting.recipe, setting.store.outputs)


def batches_of(setting: Setting, box: Box | None = None) -> TrainingPictures:
    """Return endless shuffled batches of the training samples, or of a window (y, x) of each."""
    training, varying = setting.recipe.training, varying_of(setting.recipe, setting.store)
    feed = None
    if setting.recipe.is_served:
        from cotswold.data.service.store import said
        from cotswold.training.data.service import feed_of

        feed = feed_of(setting, said(varying), box)
    return setting.open_things.enter_context(
        TrainingPictures(
            setting.store,
            training.batch_size,
            training.seed,
            training.device,
            box=box,
            varying=varying,
            feed=feed,
        )
    )
