"""The strategy `downpour`: replicas behind parameter servers (Dean et al. 2012, section 4.1).

Knows: what a recipe asks for, how processes are opened for it. Does not know: when a run ends, what a replica
does.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from cotswold.cluster import ClusterSettings
from cotswold.cluster.replicas import PRELOADED, Replicas, ReplicaSettings, open_replicas
from cotswold.host import ForkServer
from cotswold.optim.updates import Adagrad, Deltas, Momentum, Rule, Sgd
from cotswold.recipe import Recipe, dump
from cotswold.recipe.schema import DownpourTraining
from cotswold.recipe.schema.cluster import port_range
from cotswold.server.replica import Pace
from cotswold.server.samples import Samples
from cotswold.server.staleness import Staleness
from cotswold.training.batch import described
from cotswold.training.flat import FlatModule
from cotswold.training.learning_works import Judge
from cotswold.training.patterns import write_rows
from cotswold.training.restore import supervised_network
from cotswold.training.runners.replicas import ReplicaRuns
from cotswold.training.spread import rows_folder, tell
from cotswold.training.table import Setting
from cotswold.training.ways import rows_of_norm_1

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


def settings_of(recipe: Recipe, unit_norm: frozenset[str] = frozenset()) -> ReplicaSettings:
    """What `[cluster]` and `[training]` ask for; ``unit_norm``: tensors whose rows have norm 1."""
    training, cluster = recipe.training, recipe.cluster
    assert isinstance(training, DownpourTraining), "the table chose by the strategy"
    return ReplicaSettings(
        ClusterSettings(
            workers=cluster.workers,
            servers=cluster.servers,
            seed=training.seed,
            threads=training.threads or 1,
            encrypt=cluster.encrypt,
            shard_bytes=1024 * training.shard_kilobytes,
            ports=port_range(cluster.ports),
            silent_seconds=cluster.silence,
        ),
        Pace(training.batch_size, training.fetch_every, training.push_every, training.staleness != 0),
        training.learning_rate,
        training.epochs,
        rule_of(training),
        training.epoch_fraction,
        training.epoch_of,
        training.warm_start,
        staleness_of(training),
        training.own_steps,
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

    def opened(ledger: Samples | None, vectors: Mapping[str, Tensor]) -> Replicas:
        write_rows(store, "train", rows)
        logs.mkdir(parents=True, exist_ok=True)
        processes = ForkServer((*PRELOADED, _WORK))
        setting.open_things.callback(processes.close)
        return open_replicas(
            settings_of(recipe, rows_of_norm_1(network) if training.unit_norm else frozenset()),
            f"{_WORK}:in_replica",
            {"recipe": dump(recipe), "store": str(store.path.absolute()), "rows": str(rows.absolute())},
            ledger=ledger,
            vectors=vectors,
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
