"""The strategy `downpour`: replicas behind parameter servers (Dean et al. 2012, section 4.1).

Knows: what a recipe asks for, how processes are opened for it. Does not know: when a run ends, what a replica
does.
"""

from __future__ import annotations

import os

from cotswold.cluster import ClusterSettings
from cotswold.cluster.replicas import PRELOADED, Replicas, ReplicaSettings, Snapshot, open_replicas
from cotswold.cluster.roles.accumulation import OwnSteps
from cotswold.geometry import Grid
from cotswold.host import ForkServer
from cotswold.optim.updates import Adagrad, Deltas, Momentum, Rule, Sgd
from cotswold.recipe import Recipe, dump
from cotswold.recipe.schema import DownpourTraining
from cotswold.recipe.schema.cluster import port_range
from cotswold.server.replica import Pace
from cotswold.server.staleness import Staleness
from cotswold.training.batch import described
from cotswold.training.flat import FlatModule
from cotswold.training.host_work import round_of
from cotswold.training.learning_works import Judge
from cotswold.training.patterns import write_rows
from cotswold.training.restore import supervised_network
from cotswold.training.runners.replicas import ReplicaRuns
from cotswold.training.spread import rows_folder, tell
from cotswold.training.table import Setting
from cotswold.training.ways import of_norm_1

_WORK = "cotswold.training.learning_works"
_MOMENTUM = 0.9


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
    all, which is a step to the servers."""
    fetch, push, overlap = training.fetch_every, training.push_every, training.staleness != 0
    if recipe.cluster.processes > 1:
        return Pace(round_of(recipe), max(1, fetch // push), 1, overlap)
    return Pace(training.batch_size, fetch, push, overlap)


def work_of(recipe: Recipe) -> str:
    """What makes a replica's work."""
    if recipe.gang is not None:
        return "cotswold.training.gang_replica:in_gang_replica"
    if recipe.cluster.processes > 1:
        return "cotswold.training.host_work:in_host"
    return f"{_WORK}:in_replica"


def own_of(recipe: Recipe, training: DownpourTraining) -> OwnSteps:
    """Steps of replicas on their own copies; several processes on one copy take plain ones."""
    own = training.own_steps
    is_free = own == "none" and training.between is None and training.rule != "adagrad"
    return "plain" if is_free and recipe.cluster.processes > 1 else own


def settings_of(recipe: Recipe, unit_norm: frozenset[str] = frozenset()) -> ReplicaSettings:
    """What `[cluster]` and `[training]` ask for; ``unit_norm``: tensors whose filters have norm 1."""
    training, cluster = recipe.training, recipe.cluster
    assert isinstance(training, DownpourTraining), "the table chose by the strategy"
    return ReplicaSettings(
        ClusterSettings(
            workers=cluster.workers,
            servers=cluster.servers,
            seed=training.seed,
            threads=training.threads or 1,
            ranks=cluster.processes if recipe.gang is None else Grid.parse(recipe.gang).size,
            encrypt=cluster.encrypt,
            shard_bytes=1024 * training.shard_kilobytes,
            ports=port_range(cluster.ports),
            silent_seconds=cluster.silence,
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
    )


def build(setting: Setting) -> ReplicaRuns:
    """The runner of a recipe."""
    recipe, training, store = setting.recipe, setting.recipe.training, setting.store
    assert isinstance(training, DownpourTraining), "the table chose by the strategy"
    rows = rows_folder(setting.run.path, setting.open_things)  # removes what a kill left there, too
    logs = setting.run.path / "logs"
    network = supervised_network(recipe, store.outputs)

    def opened(snapshot: Snapshot | None) -> Replicas:
        write_rows(store, "train", rows)
        logs.mkdir(parents=True, exist_ok=True)
        work = work_of(recipe)
        # torch is to say nothing of sockets where ranks of a gang end
        environ = {"TORCH_CPP_LOG_LEVEL": "FATAL", **os.environ}
        processes = ForkServer((*PRELOADED, work.partition(":")[0]), environ)
        setting.open_things.callback(processes.close)
        return open_replicas(
            settings_of(recipe, of_norm_1(network) if training.unit_norm else frozenset()),
            work,
            {"recipe": dump(recipe), "store": str(store.path.absolute()), "rows": str(rows.absolute())},
            snapshot=snapshot,
            processes=processes,
            logs=logs,
            on_event=lambda kind, more: tell(setting.recorder, kind, more),
        )

    return ReplicaRuns(
        opened,
        Judge(recipe, store).means,
        FlatModule(network),
        store.splits["train"],
        training,
        setting.recorder,
        described(network),
    )
