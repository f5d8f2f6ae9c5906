"""Builders of the strategies that train stacks, greedy and joint: in memory, offloaded, sharded.

Knows: the parameter store and the batches of each placement. Does not know: what a strategy computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from cotswold.data import shuffle_bytes
from cotswold.geometry import Box
from cotswold.training.data.augmentation import augmentation_of
from cotswold.training.data.store_batches import TrainBatches, ValidationBatches, read_maps
from cotswold.training.models import build_stacks
from cotswold.training.parameters.base import InMemoryParameters, ParameterStore
from cotswold.training.strategies.assembly import batches_of, make_trainer
from cotswold.training.strategies.frozen_outputs import FrozenOutputs, RunLimits
from cotswold.training.strategies.greedy import Greedy
from cotswold.training.strategies.joint import Joint
from cotswold.training.strategies.registry import StrategyEntry, TrainContext
from cotswold.training.strategies.stacks import StackStrategy
from cotswold.training.trainers.sync import SyncTrainer

StackKind = type[StackStrategy]


def stack_entry(kind: StackKind) -> StrategyEntry:
    """Return the spec of a strategy that trains stacks, with a builder for each placement.

    Args:
        kind: The class of the strategy.
    """
    return StrategyEntry(
        partial(in_memory, kind), partial(build_offloaded, kind), partial(build_sharded, kind)
    )


def in_memory(kind: StackKind, context: TrainContext) -> SyncTrainer:
    """Build the trainer with all filters in memory."""
    return _build(kind, context, InMemoryParameters(build_stacks(context.recipe)))


def build_offloaded(kind: StackKind, context: TrainContext) -> SyncTrainer:
    """Build the trainer with filters in files of the run's directory."""
    from cotswold.training.parameters.offload.parameters import OffloadedParameters

    holder = OffloadedParameters(
        context.recipe,
        context.run.path / "offload",
        fresh=context.fresh,
        momentum_name=kind.momentum_name,
        reading=shuffle_bytes(context.store, "train"),
    )
    return _build(kind, context, context.exit_stack.enter_context(holder))


def build_sharded(kind: StackKind, context: TrainContext) -> SyncTrainer:
    """Build the trainer of one rank of a mesh, with its shard of the filters."""
    from cotswold.training.parameters.sharded import ShardedParameters

    holder = ShardedParameters(context.recipe, context.mesh)
    return _build(kind, context, holder, holder.window)


def _build(
    kind: StackKind, context: TrainContext, holder: ParameterStore, box: Box | None = None
) -> SyncTrainer:
    batches = batches_of(context, box)
    validation = ValidationBatches(context.store, context.recipe, box=box)
    strategy = kind(holder, context.recipe, context.epochs, batches.epoch_steps, validation.maps)
    if isinstance(strategy, Greedy) and augmentation_of(context.recipe, context.store) is None:
        strategy.outputs = FrozenOutputs(_limits(context, batches, box))
    return make_trainer(strategy, batches, context)


def _limits(context: TrainContext, batches: TrainBatches, box: Box | None) -> RunLimits:
    """Return the limits of a run for the outputs of its frozen stacks."""
    store, device = context.store, context.recipe.training.device

    def fetch(rows: Sequence[int]) -> Tensor:
        return torch.cat([read_maps(store, "train", row, row + 1, box) for row in rows]).to(device)

    return RunLimits(
        samples=store.splits["train"],
        batch=batches.batch_size,
        folder=context.run.path,
        ranks=context.rank_context.ranks.size,
        largest=context.rank_context.all_reduce_max,
        record=context.recorder.event,
        fetch=None if context.recipe.is_served else fetch,
    )


greedy_in_memory, greedy_on_disk, greedy_on_mesh = (
    partial(in_memory, Greedy),
    partial(build_offloaded, Greedy),
    partial(build_sharded, Greedy),
)
joint_in_memory, joint_on_disk, joint_on_mesh = (
    partial(in_memory, Joint),
    partial(build_offloaded, Joint),
    partial(build_sharded, Joint),
)
