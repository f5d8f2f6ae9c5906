"""Recipes of strategy downpour: real replicas, readable checkpoints, resumed runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.training.runs import bits, events, finish, labelled_vectors, last, losses, resumed
from torch import nn

import cotswold
from cotswold.errors import RecipeError
from cotswold.optim.schedule import Schedule, rate_at
from cotswold.recipe import load
from cotswold.run import RunDirectory, Stop
from cotswold.shards.core.permutation import samples_at
from cotswold.training import RecipeJob, open_job
from cotswold.training.data.indexed import StoreSamples
from cotswold.training.jobs.restore import supervised_network
from cotswold.training.models import network_tensors
from cotswold.training.strategies.supervised import require_targets

LAYERS = '{ type = "linear", features = 8 }, { type = "tanh" }'


def recipe_of(folder: Path, cluster: str = "workers = 2", **training: object) -> Path:
    """Write a recipe over 300 vectors of three classes."""
    recipe = labelled_vectors(folder, LAYERS)
    lines = recipe.read_text().splitlines()
    given = {"strategy": "downpour", "batch_size": 16, "epochs": 4, "learning_rate": 0.2, **training}
    words = ", ".join(
        f"{name} = {f'{value!r}' if isinstance(value, str) else str(value).lower()}"
        for name, value in given.items()
    )
    data = lines[1].replace(" }", ", validation = 0.2 }")
    lines = [lines[0], data, *lines[2:-1], f"training = {{ {words} }}", f"cluster = {{ {cluster} }}"]
    recipe.write_text("\n".join(lines))
    return recipe


def job_of(folder: Path, cluster: str = "workers = 2", **training: object) -> RecipeJob:
    return open_job(recipe_of(folder, cluster, **training), folder / "run", stores=folder / "stores")


def accounted(run: RunDirectory, epochs: int) -> Mapping[str, Any]:
    (end,) = events(run, "phase_end")
    known: dict[str, Any] = {
        name: end.get(f"samples_{name}", 0) for name in ("counted", "torn", "refused", "left_out")
    }
    assert sum(known.values()) == 240 * epochs
    return known


@pytest.mark.parametrize("rule", ["sgd", "momentum", "adagrad"])
def test_a_recipe_learns_by_each_rule(rule: str, tmp_path: Path) -> None:
    rate = {"sgd": 0.2, "momentum": 0.02, "adagrad": 0.05}[rule]
    run = finish(job_of(tmp_path, update_rule=rule, learning_rate=rate))
    accounted(run, 4)
    found = losses(run)
    assert found[-1] < 0.7 * found[0]
    assert len(found) >= 2, "before and after; in between if the evaluator is there in time"
    assert events(run, "step")[-1]["staleness"] is not None
    assert len(cotswold.predict(run.path, tmp_path / "x.npy")) == 300


def by_sgd(
    job: RecipeJob, steps: int, schedule: Schedule = "constant", warmup: float = 0.0, decay: float = 0.0
) -> list[torch.Tensor]:
    """Return the losses of ordinary SGD on the batches assigned to one replica, at the rates of strategy
    supervised."""
    network = supervised_network(job.recipe, job.store.outputs)
    optimiser = torch.optim.SGD(network.parameters(), 0.2, weight_decay=decay)
    samples = StoreSamples(job.store, "train")
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate_at(step, steps, 0.2, schedule, warmup)
        batch = samples.batch(samples_at(0, 240, 16 * step, 16 * step + 16))
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(network(batch.inputs), require_targets(batch.targets))
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimiser.step()
    return list(network_tensors(network).values())


@pytest.mark.parametrize(
    ("servers", "schedule", "warmup", "decay"),
    [(1, "constant", 0.0, 0.0), (3, "cosine", 0.1, 0.01)],
)
def test_one_replica_with_a_staleness_of_0_has_the_bits_of_sgd(
    servers: int, schedule: Schedule, warmup: float, decay: float, tmp_path: Path
) -> None:
    job = job_of(
        tmp_path,
        f"workers = 1, servers = {servers}",
        max_staleness=0,
        epoch_fraction=1.0,
        shard_kilobytes=1,
        schedule=schedule,
        warmup=warmup,
        weight_decay=decay,
        push_format="gradient",
    )
    run = finish(job)
    assert accounted(run, 4)["counted"] == 960
    tensors = last(run.checkpoints).tensors()
    expected = by_sgd(job, 60, schedule, warmup, decay)
    found = [tensors[name] for name in sorted(tensors)]
    assert len(found) == len(expected)
    wanted = {tuple(each.shape): each for each in expected}
    assert all(torch.equal(each, wanted[tuple(each.shape)]) for each in found)


@pytest.mark.soak
def test_a_run_that_was_stopped_goes_on_with_the_bits_of_one_that_was_not(tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "max_staleness": 0,
        "epoch_fraction": 1.0,
        "update_rule": "momentum",
        "epochs": 12,
    }
    settings["learning_rate"] = 0.01
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    whole = finish(job_of(tmp_path / "one", "workers = 1", **settings))
    stop = Stop()

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "cluster_epoch":
            stop.signal = 2

    stopped = job_of(tmp_path / "two", "workers = 1", **settings)
    assert not stopped.train(watch=watch, stop=stop)
    counted = bits(stopped.run)[1]["position"]["total"]
    assert [event["samples"] for event in events(stopped.run, "end")] == [counted]
    assert 0 < counted < 12 * 240
    finish(resumed(stopped.run.path, tmp_path / "two" / "stores"))
    (one, other) = (last(run.checkpoints).tensors() for run in (whole, stopped.run))
    assert one.keys() == other.keys()
    assert any(name.startswith("vector.velocity") for name in one)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_finished_run_goes_on_for_more_epochs(tmp_path: Path) -> None:
    job = job_of(tmp_path, epochs=1)
    finish(job)
    more = recipe_of(tmp_path, epochs=3)
    finish(open_job(more, job.run.path, stores=tmp_path / "stores", resume=cotswold.training.Resume.ALWAYS))
    assert bits(job.run)[1]["strategy"]["ledger"]["epoch"] == 2


@pytest.mark.parametrize(
    ("cluster", "training", "complaint"),
    [
        ("workers = 2", {"momentum": 0.5}, "rule"),
        ("workers = 2", {"staleness_policy": "drop"}, "staleness"),
        ("workers = 2", {"staleness_policy": "scale", "max_staleness": 0}, "at least"),
        ("workers = 2", {"max_staleness": 0, "push_every": 2}, "push_every"),
        (
            "workers = 2",
            {"update_rule": "deltas", "pull_every": 2, "local_steps": "sgd"},
            "remove local_steps",
        ),
        ("workers = 2", {"local_steps": "none"}, "pull_every above 1"),
        (
            "workers = 2",
            {"update_rule": "adagrad", "pull_every": 2, "local_steps": "sgd"},
            "replicas cannot take SGD steps",
        ),
        ("workers = 2", {"update_rule": "deltas", "push_format": "factors"}, "needs whole gradients"),
        (
            "workers = 2",
            {"pull_every": 2, "local_steps": "sgd", "factor_layers": [1]},
            "needs whole gradients",
        ),
        ("workers = 2", {"factor_layers": [1], "gradient_layers": [1]}, "layer 1 is in"),
        ("workers = 2", {"factor_layers": [2]}, "layer 2 is not fully connected or local.*: 1, 3"),
        ("workers = 2", {"gradient_layers": [4]}, "layer 4 is no"),
        ("workers = 2, processes = 2", {"push_format": "factors"}, "several processes"),
        ('workers = 2, point_transfer = "bunyip"', {}, "point_transfer"),
        ("workers = 2, servers = 2, replication_factor = 3", {}, "give more servers, or fewer copies"),
        ("workers = 2, servers = 9, replication_factor = 6", {}, "replication_factor"),
        (
            "servers = 3, replication_factor = 2, replication_factor_min = 3",
            {},
            "pushes would never be accepted",
        ),
        ('workers = 2, topology = "chain"', {}, "each bucket is on one server"),
        ("processes = 2, servers = 2, replication_factor = 2", {}, "servers without copies"),
        ("servers = 2, replication_factor = 2", {"record_traffic": True}, "remove it or"),
        ('controllers = "a", spread_servers = true', {}, "remove cluster.spread_servers"),
    ],
)
def test_what_does_nothing_is_refused(
    cluster: str, training: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=complaint):
        load(str(recipe_of(tmp_path, cluster, **training)))
