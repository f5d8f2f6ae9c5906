"""Strategy `downpour`: replicas and parameter servers (Dean et al. 2012, section 4.1).

Knows: the recipe's settings, how processes are opened for them. Does not know: when a run ends, what a
replica does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from cotswold.errors import RecipeError, UserError
from cotswold.geometry import Grid
from cotswold.host import ForkServer
from cotswold.optim.server_rules import Adagrad, AddUpdate, Momentum, Rule, Sgd
from cotswold.paramserver.core.replica_session import Pace
from cotswold.paramserver.core.staleness import Staleness
from cotswold.paramserver.runtime.traffic_log import FOLDER
from cotswold.processes.forked_work import fork_server_of_work
from cotswold.recipe import Recipe, dump
from cotswold.recipe.schema import DownpourTraining
from cotswold.recipe.schema.cluster import port_range
from cotswold.replicas.accumulation import OwnSteps
from cotswold.replicas.evaluator import EvaluatorTask
from cotswold.replicas.replicas import PRELOADED, Replicas, open_replicas
from cotswold.replicas.snapshot import ParameterSnapshot
from cotswold.replicas.startup import ReplicaSettings
from cotswold.replication.run_settings import ReplicatedClusterSettings
from cotswold.replication.runtime.run_cluster import DISKS_FOLDER
from cotswold.run import Recorder
from cotswold.training.async_sgd.evaluation import INHERITED_METRICS
from cotswold.training.async_sgd.hogwild_replica import round_of
from cotswold.training.async_sgd.push_format import unit_norm_weights
from cotswold.training.data.data_servers import pool_argument, pool_of
from cotswold.training.data.indexed import StoreSamples, write_rows
from cotswold.training.devices import with_cpu_device
from cotswold.training.flat_parameters import FlatParameters
from cotswold.training.full_batch.cluster import (
    ClusterStarter,
    cluster_starter,
    record_cluster_event,
    rows_folder,
)
from cotswold.training.full_batch.strategy import described
from cotswold.training.jobs.restore import supervised_network
from cotswold.training.losses import loss_of
from cotswold.training.metrics.held_out import HeldOutMetrics, metrics_of
from cotswold.training.strategies.registry import TrainContext
from cotswold.training.trainers.async_sgd import AsyncTrainer

_WORK = "cotswold.training.async_sgd.replica_task"
_EVALUATION_MODULE = "cotswold.training.async_sgd.evaluation"
_MOMENTUM = 0.9
RUN_NAME_FILE = "parameter-servers.json"
"""The file with the run's name on a running cluster."""


def rule_of(training: DownpourTraining) -> Rule:
    """Return the servers' update rule."""
    match training.update_rule:
        case "sgd":
            return Sgd()
        case "momentum":
            return Momentum(training.momentum or _MOMENTUM)
        case "adagrad":
            return Adagrad()
        case "deltas":
            return AddUpdate()


def staleness_of(training: DownpourTraining) -> Staleness:
    """Return the staleness bound and the policy beyond it."""
    if training.max_staleness is None:
        return Staleness()
    return Staleness(training.staleness_policy or "wait", training.max_staleness)


def pace_of(recipe: Recipe, training: DownpourTraining) -> Pace:
    """Return how often a replica steps, pulls and pushes.

    A multi-process replica pushes after each round of its processes, which is one step for the servers. If
    other replicas wait for its results, a step does not overlap with pushes or pulls: servers could not know
    the version from which it started.
    """
    fetch, push = training.pull_every, training.push_every
    policy = staleness_of(training)
    overlap = policy.policy != "wait" and training.max_staleness != 0
    if recipe.cluster.processes > 1:
        return Pace(round_of(recipe), max(1, fetch // push), 1, overlap)
    return Pace(training.batch_size, fetch, push, overlap)


def work_of(recipe: Recipe) -> str:
    """Return the name of the function that builds a replica's task."""
    if recipe.worker_grid is not None:
        return "cotswold.training.model_parallel.replica:build_model_parallel_replica"
    if recipe.cluster.processes > 1:
        return "cotswold.training.async_sgd.hogwild_replica:build_hogwild_replica"
    return f"{_WORK}:build_replica_task"


def local_steps_of(recipe: Recipe, training: DownpourTraining) -> OwnSteps:
    """Return the local steps of replicas; several processes on one copy take SGD steps."""
    own = training.own_steps
    is_free = own == "none" and training.local_steps is None and training.update_rule != "adagrad"
    return "sgd" if is_free and recipe.cluster.processes > 1 else own


def settings_of(
    recipe: Recipe, run: Path | None = None, unit_norm: frozenset[str] = frozenset()
) -> ReplicaSettings:
    """Return the settings of `[cluster]` and `[training]`.

    ``run`` is the folder of the run; ``unit_norm`` names tensors whose filters have norm 1.
    """
    training, cluster = recipe.training, recipe.cluster
    assert isinstance(training, DownpourTraining), "the registry selects by strategy"
    return ReplicaSettings(
        ReplicatedClusterSettings(
            workers=cluster.workers,
            servers=cluster.servers,
            replication_factor=cluster.replication_factor,
            replication_factor_min=cluster.replication_factor_min,
            topology=cluster.topology,
            disks=str((run / DISKS_FOLDER).absolute()) if run is not None and cluster.flush_seconds else None,
            flush_seconds=cluster.flush_seconds or 1.0,
            standing=tuple((cluster.controllers or "").split(",")) if cluster.controllers else (),
            note=str(run / RUN_NAME_FILE) if run is not None and cluster.controllers else None,
            max_buckets=cluster.max_buckets or (64 if cluster.controllers else None),
            seed=training.seed,
            threads=training.threads or 1,
            ranks=cluster.processes if recipe.worker_grid is None else Grid.parse(recipe.worker_grid).size,
            encrypt=cluster.encrypt,
            shard_bytes=1024 * training.shard_kilobytes,
            ports=port_range(cluster.ports),
            spread_servers=cluster.spread_servers,
            silent_seconds=cluster.heartbeat_timeout,
            alone_seconds=cluster.unavailable_timeout,
        ),
        pace_of(recipe, training),
        training.learning_rate,
        training.epochs,
        rule_of(training),
        training.epoch_fraction,
        training.epoch_fraction_of,
        training.warm_start_samples,
        staleness_of(training),
        local_steps_of(recipe, training),
        training.schedule,
        training.warmup,
        unit_norm,
        device=training.device,
        may_move=training.local_steps != "none",
        name=recipe.name,
        traffic=(run / FOLDER).absolute() if run is not None and training.record_traffic else None,
    )


def build(context: TrainContext) -> AsyncTrainer:
    """Return the trainer of a recipe."""
    recipe, training, store = with_cpu_device(context.recipe), context.recipe.training, context.store
    assert isinstance(training, DownpourTraining), "the registry selects by strategy"
    evaluator_task = None
    if training.patience is not None and not store.splits.get("validation"):
        raise RecipeError(
            "training.patience stops a run when validation stops improving, but there is no validation; set "
            "data.validation, or omit patience"
        )
    if store.splits.get("validation"):
        where = {"recipe": dump(recipe), "store": str(store.path.absolute())}
        make = "build_evaluation_of_fork" if context.components.metrics else "build_evaluation"
        evaluator_task = EvaluatorTask(f"{_EVALUATION_MODULE}:{make}", where)
    run = context.run.path
    rows = rows_folder(run, context.exit_stack)  # also removes leftovers of a killed run
    network = supervised_network(recipe, store.outputs)
    work = work_of(recipe)
    processes = _check_metrics(context, network, recipe)

    def started() -> tuple[ClusterStarter, Mapping[str, object]]:
        start = cluster_starter(
            recipe, (*PRELOADED, work.partition(":")[0], _EVALUATION_MODULE), context.exit_stack, processes
        )
        pool = pool_of(context, start.token, start.host)
        if pool is None:
            write_rows(store, "train", rows)
        return start, pool_argument(pool)

    opening = ProcessStarter(
        settings_of(context.recipe, run, unit_norm_weights(network) if training.unit_norm else frozenset()),
        work,
        {"recipe": dump(recipe), "store": str(store.path.absolute()), "rows": str(rows.absolute())},
        started,
        run / "logs",
        context.recorder,
        evaluator_task,
    )
    return AsyncTrainer(
        opening,
        FlatParameters(network),
        store.splits["train"],
        training,
        context.recorder,
        described(network),
    )


def _check_metrics(
    context: TrainContext, network: nn.Module, recipe: Recipe
) -> Callable[[], ForkServer] | None:
    """Raise UserError if the evaluator could not measure the run's metrics.

    Returns a starter of processes that inherit a program's objects; None if there are no objects.
    """
    store, objects = context.store, context.components.metrics
    metrics = metrics_of(recipe, loss_of(recipe), objects, store)
    if metrics and store.splits.get("validation"):
        HeldOutMetrics(metrics, StoreSamples(store, "validation"), recipe.training.batch_size).check(network)
    if not objects:
        return None
    if recipe.cluster.ray_address is not None:
        raise UserError(
            "the evaluator of a run on Ray may be on another machine, which has no objects of this program; "
            "name the metrics in the recipe (training.metrics), or omit ray_address"
        )
    return lambda: fork_server_of_work({INHERITED_METRICS: objects})


@dataclass(frozen=True)
class ProcessStarter:
    """A function object that starts the processes of a run on demand."""

    settings: ReplicaSettings
    work: str
    arguments: Mapping[str, object]
    start: Callable[[], tuple[ClusterStarter, Mapping[str, object]]]
    """Returns the starter of processes, and further arguments."""
    logs: Path
    recorder: Recorder
    evaluator: EvaluatorTask | None = None

    def __call__(self, snapshot: ParameterSnapshot | None) -> Replicas:
        """Open the replicas, from a snapshot if given."""
        self.logs.mkdir(parents=True, exist_ok=True)
        start, more = self.start()
        return open_replicas(
            self.settings,
            self.work,
            {**self.arguments, **more},
            snapshot=snapshot,
            evaluator=self.evaluator,
            processes=start.processes,
            token=start.token,
            host=start.host,
            logs=self.logs,
            on_event=lambda kind, more: record_cluster_event(self.recorder, kind, more),
        )
