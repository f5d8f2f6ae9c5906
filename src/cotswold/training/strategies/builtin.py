"""The strategies of Cotswold, put together for each place where their parameters can be.

Knows: which holder, batches and runner a strategy takes. Does not know: what any of them does.
"""

from __future__ import annotations

from functools import partial

import torch

from cotswold.data import shuffle_bytes
from cotswold.data.service.store import said
from cotswold.geometry import Box, Partition
from cotswold.mesh import Mesh, local_map, partition
from cotswold.training.async_sgd import strategy as downpour
from cotswold.training.data.service import feed_of, is_served
from cotswold.training.data.store_batches import TrainingPictures, ValidationPictures
from cotswold.training.data.varying import varying_of
from cotswold.training.full_batch import strategy as batch
from cotswold.training.jobs.restore import supervised_network
from cotswold.training.losses import loss_of
from cotswold.training.models import LayerNetwork, build_stacks
from cotswold.training.parameters.base import HeldInMemory, ParameterHolder
from cotswold.training.parameters.offload.parameters import HeldOnDisk
from cotswold.training.parameters.sharded import HeldOnMesh
from cotswold.training.strategies.base import Batches, Strategy
from cotswold.training.strategies.greedy import Greedy
from cotswold.training.strategies.joint import Joint
from cotswold.training.strategies.registry import Entry, Setting
from cotswold.training.strategies.stacks import StackStrategy
from cotswold.training.strategies.supervised import Supervised, supervised_training
from cotswold.training.strategies.supervised_on_mesh import SupervisedOnMesh
from cotswold.training.trainers.sync import Synchronous

StackKind = type[StackStrategy]


def stack_entry(kind: StackKind) -> Entry:
    """The entry of a strategy that trains stacks, wherever their filters are."""
    return Entry(partial(_in_memory, kind), partial(_on_disk, kind), partial(_on_mesh, kind))


def _in_memory(kind: StackKind, setting: Setting) -> Synchronous:
    return _of_stacks(kind, setting, HeldInMemory(build_stacks(setting.recipe)))


def _on_disk(kind: StackKind, setting: Setting) -> Synchronous:
    holder = HeldOnDisk(
        setting.recipe,
        setting.run.path / "offload",
        fresh=setting.fresh,
        momentum_name=kind.momentum_name,
        reading=shuffle_bytes(setting.store, "train"),
    )
    return _of_stacks(kind, setting, setting.open_things.enter_context(holder))


def _on_mesh(kind: StackKind, setting: Setting) -> Synchronous:
    holder = HeldOnMesh(setting.recipe, _mesh(setting))
    return _of_stacks(kind, setting, holder, holder.window)


def _of_stacks(
    kind: StackKind, setting: Setting, holder: ParameterHolder, box: Box | None = None
) -> Synchronous:
    batches = batches_of(setting, box)
    validation = ValidationPictures(setting.store, setting.recipe, box=box)
    strategy = kind(holder, setting.recipe, setting.epochs, batches.epoch_steps, validation.maps)
    return _driven(strategy, batches, setting)


def _supervised(setting: Setting) -> Synchronous:
    batches = batches_of(setting)
    strategy = Supervised(
        layers_of(setting),
        supervised_training(setting.recipe),
        loss_of(setting.recipe),
        setting.epochs,
        batches.epoch_steps,
        ValidationPictures(setting.store, setting.recipe).batches,
    )
    return _driven(strategy, batches, setting)


def _supervised_on_mesh(setting: Setting) -> Synchronous:
    mesh, shape = _mesh(setting), setting.recipe.input
    windows = Partition.even((shape.height, shape.width), mesh.grid)
    box = windows.box(mesh.rank)
    batches, network = batches_of(setting, box), layers_of(setting)
    torch.manual_seed(setting.recipe.training.seed)  # a partition asks that ranks draw alike
    strategy = SupervisedOnMesh(
        partition(network, mesh),
        supervised_training(setting.recipe),
        loss_of(setting.recipe),
        setting.epochs,
        batches.epoch_steps,
        ValidationPictures(setting.store, setting.recipe, box=box).batches,
        spread=lambda inputs: local_map(inputs, mesh, windows),
    )
    return _driven(strategy, batches, setting)


def _driven(strategy: Strategy, batches: Batches, setting: Setting) -> Synchronous:
    return Synchronous(strategy, batches, setting.recorder, setting.team, is_served=is_served(setting.recipe))


def layers_of(setting: Setting) -> LayerNetwork:
    """The layers that the recipe describes, with an output for each class (or number) of its data."""
    return supervised_network(setting.recipe, setting.store.outputs)


def batches_of(setting: Setting, box: Box | None = None) -> TrainingPictures:
    """Shuffled batches of the training samples, or of a window (y, x) of each, for ever."""
    training, varying = setting.recipe.training, varying_of(setting.recipe, setting.store)
    return setting.open_things.enter_context(
        TrainingPictures(
            setting.store,
            training.batch_size,
            training.seed,
            training.device,
            box=box,
            varying=varying,
            feed=feed_of(setting, said(varying), box),
        )
    )


def _mesh(setting: Setting) -> Mesh:
    mesh = setting.team.mesh
    assert mesh is not None, "the table asks for ranks where there are some"
    return mesh


ENTRIES = {
    "greedy": stack_entry(Greedy),
    "joint": stack_entry(Joint),
    "supervised": Entry(_supervised, on_mesh=_supervised_on_mesh),
    "batch": Entry(batch.build),
    "downpour": Entry(downpour.build),
}
