"""Strategy `batch`: the optimisation method, and the backend that computes the full batch.

Knows: methods of `optim`, objectives, one process and clusters. Does not know: when a run ends, files, the
terminal.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from cotswold.host import Token, token_of
from cotswold.optim import (
    ApproximateWolfe,
    BunyipSearch,
    CGMethod,
    Decayed,
    LBFGSMethod,
    Objective,
    Search,
    Vectors,
)
from cotswold.processes.device import select_device
from cotswold.recipe import Recipe, dump
from cotswold.recipe.schema import BatchTraining
from cotswold.run import Recorder
from cotswold.shards.runtime.work import Work, held_out_portions, validation_means
from cotswold.training.data.data_servers import pool_argument, pool_of
from cotswold.training.data.indexed import IndexedSamples, StoreSamples, write_rows
from cotswold.training.devices import with_cpu_device
from cotswold.training.flat_parameters import FlatParameters
from cotswold.training.full_batch.backend import Method
from cotswold.training.full_batch.cluster import (
    ClusterBackend,
    open_training_cluster,
    recorded_in,
    rows_folder,
)
from cotswold.training.full_batch.local import FullBatchObjective, ProgressCallback
from cotswold.training.full_batch.objective import ModuleObjective, objective_from_recipe
from cotswold.training.jobs.restore import supervised_network
from cotswold.training.losses import loss_of
from cotswold.training.metrics.held_out import HeldOutMetrics, metrics_of
from cotswold.training.models import LayerNetwork
from cotswold.training.strategies.registry import TrainContext
from cotswold.training.trainers.full_batch import FullBatchTrainer

MEMORY = 10
"""The default number of pairs that L-BFGS keeps."""
CYCLE = 5


class LocalBackend:
    """The local backend: the full batch in this process."""

    workers = 1

    def __init__(self, work: Work, training: BatchTraining, recorded: Sequence[str] = ()) -> None:
        self.work, self._portion = work, training.portion_size
        self.set = FullBatchObjective(
            work,
            portion=training.portion_size,
            fraction=training.sample_fraction,
            deterministic=training.deterministic,
            seed=training.seed,
            recorded=recorded,
        )

    @property
    def flops(self) -> tuple[int, int]:
        """FLOPs per sample of value alone, and of value and gradient."""
        return self.work.flops

    def listen(self, on_progress: ProgressCallback) -> None:
        """Call ``on_progress`` after every portion."""
        self.set.on_progress = on_progress

    def state(self) -> Mapping[str, object]:
        """Return the sets of samples drawn, in the format of a cluster."""
        return self.set.sets.state()

    def load(self, state: Mapping[str, object]) -> None:
        """Restore a state that `state` returned."""
        self.set.sets.load(state)

    def read(self, name: str) -> Tensor:
        """Return a vector (the live one)."""
        return self.set.vectors[name][0]

    def write(self, name: str, value: Tensor) -> None:
        """Set a vector."""
        self.set.vectors.make(name)[0].copy_(value)

    def validate(self) -> Mapping[str, float] | None:
        """Return the validation metrics at the point, which the parameters hold."""
        portions = held_out_portions(self.work.held_out, self._portion)
        return validation_means([self.work.validate(start, stop) for start, stop in portions])


def method_of(training: BatchTraining, vectors: Vectors, objective: Objective) -> Method:
    """Return the method that `[training]` names."""
    cycle = (training.cycle_iterations or CYCLE) if training.chooses else None
    if training.weight_decay:
        objective = Decayed(objective, training.weight_decay)
    if training.method == "lbfgs":
        search: Search | None = ApproximateWolfe() if training.line_search == "approximate" else None
        return LBFGSMethod(
            vectors,
            objective,
            history_size=training.history_size or MEMORY,
            line_search=search,
            cycle_iterations=cycle,
        )
    searches: dict[str, Search | None] = {
        "wolfe": None,  # the method's default, with a suitable curvature
        "approximate": ApproximateWolfe(curvature=0.4),
        "bunyip": BunyipSearch(),
    }
    search = searches[training.line_search]
    return CGMethod(
        vectors, objective, beta=training.beta or "polak-ribiere", line_search=search, cycle_iterations=cycle
    )


def local_trainer(
    work: ModuleObjective,
    recipe: Recipe,
    recorder: Recorder,
    metrics: HeldOutMetrics,
    kind: type[FullBatchTrainer] = FullBatchTrainer,
) -> FullBatchTrainer:
    """Return the trainer of an objective in this process."""
    training = recipe.training
    assert isinstance(training, BatchTraining), "the registry selects by strategy"
    torch.manual_seed(training.seed)
    if training.device != "cpu":
        work.move_to(select_device(training.device, "strategy batch"))
    here = LocalBackend(work, training, recorded_in(recipe))
    method = method_of(training, here.set.vectors, here.set)
    return kind(here, method, work.flat, training, recorder, described(work.network), metrics)


def described(network: nn.Module) -> dict[str, object]:
    """Return the event fields of a network."""
    children = network.layers if isinstance(network, LayerNetwork) else network.children()
    return {
        "phase": "layers",
        "layers": [repr(each) for each in children] or [type(network).__name__],
        "parameters": sum(each.numel() for each in network.parameters()),
    }


def build(context: TrainContext) -> FullBatchTrainer:
    """Return the trainer of a recipe."""
    recipe, training = context.recipe, context.recipe.training
    assert isinstance(training, BatchTraining), "the registry selects by strategy"
    rows = rows_folder(context.run.path, context.exit_stack)  # also removes leftovers of a killed run
    if recipe.alone:
        token = token_of(os.environ) or Token.new()
        pool = pool_of(context, token, None)
        work = objective_from_recipe(recipe, context.store, None, None if pool is None else str(pool), token)
        return local_trainer(work, recipe, context.recorder, _metrics(context, work.held))
    for split in ("validation",) if recipe.is_served else ("train", "validation"):
        if context.store.splits.get(split):
            write_rows(context.store, split, rows)
    arguments = {"recipe": dump(recipe), "store": str(context.store.path.absolute()), "rows": str(rows)}
    there = open_training_cluster(
        recipe,
        context.run.path,
        "cotswold.training.full_batch.objective:build_objective"
        if recipe.worker_grid is None
        else "cotswold.training.model_parallel.full_batch_worker:build_model_parallel_worker",
        arguments,
        context.recorder,
        context.exit_stack,
        extra_arguments=lambda start: pool_argument(pool_of(context, start.token, start.host)),
    )
    network = supervised_network(with_cpu_device(recipe), context.store.outputs)
    held = StoreSamples(context.store, "validation", rows) if context.store.splits.get("validation") else None
    return cluster_trainer(
        there, FlatParameters(network), training, context.recorder, _metrics(context, held)
    )


def _metrics(context: TrainContext, held: IndexedSamples | None) -> HeldOutMetrics:
    recipe = context.recipe
    found = metrics_of(recipe, loss_of(recipe), context.components.metrics, context.store)
    return HeldOutMetrics(found, held, recipe.training.batch_size)


def cluster_trainer(
    backend: ClusterBackend,
    flat: FlatParameters,
    training: BatchTraining,
    recorder: Recorder,
    metrics: HeldOutMetrics,
    kind: type[FullBatchTrainer] = FullBatchTrainer,
) -> FullBatchTrainer:
    """Return the trainer of a cluster; ``flat`` is the same network, for checkpoints and ``metrics``."""
    method = method_of(training, backend, backend)
    return kind(backend, method, flat, training, recorder, described(flat.module), metrics)
