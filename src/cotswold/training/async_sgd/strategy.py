"""The strategy `downpour`: replicas behind parameter servers (Dean et al. 2012, section 4.1).

Knows: what a recipe asks for, how processes are opened for it. Does not know: when a run ends, what a replica
does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cotswold.errors import RecipeError
from cotswold.geometry import Grid
from cotswold.optim.server_rules import Adagrad, Deltas, Momentum, Rule, Sgd
from cotswold.paramserver.core.replica_session import Pace
from cotswold.paramserver.core.staleness import Staleness
from cotswold.paramserver.runtime.traffic_log import FOLDER
from cotswold.recipe import Recipe, dump
from cotswold.recipe.schema import DownpourTraining
from cotswold.recipe.schema.cluster import port_range
from cotswold.replicas.accumulation import OwnSteps
from cotswold.replicas.evaluator import EvaluatorTask
from cotswold.replicas.replicas import PRELOADED, Replicas, open_replicas
from cotswold.replicas.snapshot import Snapshot
from cotswold.replicas.startup import ReplicaSettings
from cotswold.replication.run_settings import ReplicatedClusterSettings
from cotswold.replication.runtime.run_cluster import DISKS
from cotswold.run import Recorder
from cotswold.training.async_sgd.hogwild_replica import round_of
from cotswold.training.async_sgd.push_format import of_norm_1
from cotswold.training.data.indexed import write_rows
from cotswold.training.data.service import pool_argument, pool_of
from cotswold.training.flat_parameters import FlatModule
from cotswold.training.full_batch.cluster import Starting, rows_folder, starting, tell
from cotswold.training.full_batch.strategy import described
from cotswold.training.jobs.restore import supervised_network
from cotswold.training.strategies.registry import Setting
from cotswold.training.trainers.async_sgd import ReplicaRuns

_WORK = "cotswold.training.async_sgd.replica_task"
_JUDGING = "cotswold.training.async_sgd.evaluation"
_MOMENTUM = 0.9
NOTE = "parameter-servers.json"
"""The file of a run that says what it is called on a cluster that outlives it."""


def rule_of(training: DownpourTraining) -> Rule:
    """What servers do with what is pushed."""
    match training.rule:
        case "sgd":
            return Sgd()
        case "momentum":
            return Momentum(training.momentum or _MOMENTUM)
        case "adagrad":
            return Adagrad()
        case "deltas":
            return Deltas()


def staleness_of(training: DownpourTraining) -> Staleness:
    """The bound, and what is done beyond it."""
    if training.staleness is None:
        return Staleness()
    return Staleness(training.stale or "wait", training.staleness)


def pace_of(recipe: Recipe, training: DownpourTraining) -> Pace:
    """How often a replica steps, fetches and pushes; one of several processes pushes after each round of them
    all, which is a step to the servers. Where others wait for what it computes, no step goes on while its own
    push or pull is under way: servers would not know from what."""
    fetch, push = training.fetch_every, training.push_every
    policy = staleness_of(training)
    overlap = policy.policy != "wait" and training.staleness != 0
    if recipe.cluster.processes > 1:
        return Pace(round_of(recipe), max(1, fetch // push), 1, overlap)
    return Pace(training.batch_size, fetch, push, overlap)


def work_of(recipe: Recipe) -> str:
    """What makes a replica's work."""
    if recipe.gang is not None:
        return "cotswold.training.model_parallel.replica:in_gang_replica"
    if recipe.cluster.processes > 1:
        return "cotswold.training.async_sgd.hogwild_replica:in_host"
    return f"{_WORK}:in_replica"


def own_of(recipe: Recipe, training: DownpourTraining) -> OwnSteps:
    """Steps of replicas on their own copies; several processes on one copy take plain ones."""
    own = training.own_steps
    is_free = own == "none" and training.between is None and training.rule != "adagrad"
    return "plain" if is_free and recipe.cluster.processes > 1 else own


def settings_of(
    recipe: Recipe, run: Path | None = None, unit_norm: frozenset[str] = frozenset()
) -> ReplicaSettings:
    """What `[cluster]` and `[training]` ask for; ``run``: the folder of the run; ``unit_norm``: tensors whose
    filters have norm 1."""
    training, cluster = recipe.training, recipe.cluster
    assert isinstance(training, DownpourTraining), "the table chose by the strategy"
    return ReplicaSettings(
        ReplicatedClusterSettings(
            workers=cluster.workers,
            servers=cluster.servers,
            server_copies=cluster.server_copies,
            server_copies_min=cluster.server_copies_min,
            replication=cluster.replication,
            disks=str((run / DISKS).absolute()) if run is not None and cluster.flush_seconds else None,
            flush_seconds=cluster.flush_seconds or 1.0,
            standing=tuple((cluster.parameter_servers or "").split(",")) if cluster.parameter_servers else (),
            note=str(run / NOTE) if run is not None and cluster.parameter_servers else None,
            buckets=cluster.buckets or (64 if cluster.parameter_servers else None),
            seed=training.seed,
            threads=training.threads or 1,
            ranks=cluster.processes if recipe.gang is None else Grid.parse(recipe.gang).size,
            encrypt=cluster.encrypt,
            shard_bytes=1024 * training.shard_kilobytes,
            ports=port_range(cluster.ports),
            spread_servers=cluster.spread_servers,
            silent_seconds=cluster.silence,
            alone_seconds=cluster.wait,
        ),
        pace_of(recipe, training),
        training.learning_rate,
        training.epochs,
        rule_of(training),
        training.epoch_fraction,
        training.epoch_of,
        training.warm_start,
        staleness_of(training),
        own_of(recipe, training),
        training.schedule,
        training.warmup,
        unit_norm,
        device=training.device,
        may_move=training.between != "none",
        name=recipe.name,
        traffic=(run / FOLDER).absolute() if run is not None and training.record_traffic else None,
    )


def made_on_cpu(recipe: Recipe) -> Recipe:
    """The recipe by which networks are made before they are moved to where their process computes: this one
    stays on the CPU, and what is drawn at random is the same on all devices."""
    training = recipe.training.model_copy(update={"device": "cpu"})
    return recipe.model_copy(update={"training": training})


def build(setting: Setting) -> ReplicaRuns:
    """The runner of a recipe."""
    recipe, training, store = made_on_cpu(setting.recipe), setting.recipe.training, setting.store
    assert isinstance(training, DownpourTraining), "the table chose by the strategy"
    judging = None
    if training.patience is not None and not store.splits.get("validation"):
        raise RecipeError(
            "training.patience stops a run whose validation gets no better, and there is none; set "
            "data.validation, or leave patience out"
        )
    if store.splits.get("validation"):
        where = {"recipe": dump(recipe), "store": str(store.path.absolute())}
        judging = EvaluatorTask(f"{_JUDGING}:in_evaluator", where)
    run = setting.run.path
    rows = rows_folder(run, setting.open_things)  # removes what a kill left there, too
    network = supervised_network(recipe, store.outputs)
    work = work_of(recipe)

    def started() -> tuple[Starting, Mapping[str, object]]:
        start = starting(recipe, (*PRELOADED, work.partition(":")[0], _JUDGING), setting.open_things)
        pool = pool_of(setting, start.token, start.host)
        if pool is None:
            write_rows(store, "train", rows)
        return start, pool_argument(pool)

    opening = Opening(
        settings_of(setting.recipe, run, of_norm_1(network) if training.unit_norm else frozenset()),
        work,
        {"recipe": dump(recipe), "store": str(store.path.absolute()), "rows": str(rows.absolute())},
        started,
        run / "logs",
        setting.recorder,
        judging,
    )
    return ReplicaRuns(
        opening,
        FlatModule(network),
        store.splits["train"],
        training,
        setting.recorder,
        described(network),
    )


@dataclass(frozen=True)
class Opening:
    """How the processes of a run are started, when it comes to that."""

    settings: ReplicaSettings
    work: str
    arguments: Mapping[str, object]
    started: Callable[[], tuple[Starting, Mapping[str, object]]]
    """What starts them, and further arguments."""
    logs: Path
    recorder: Recorder
    evaluator: EvaluatorTask | None = None

    def __call__(self, snapshot: Snapshot | None) -> Replicas:
        """Go on from a snapshot, or begin."""
        self.logs.mkdir(parents=True, exist_ok=True)
        start, more = self.started()
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
            on_event=lambda kind, more: tell(self.recorder, kind, more),
        )
