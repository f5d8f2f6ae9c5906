"""Replicas that are rank groups: each rank pulls and pushes its own shards, with the results of one
process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tests.support.training.runs import events, finish, last, losses
from tests.training.async_sgd.test_strategy import accounted, recipe_of
from tests.training.model_parallel.test_full_batch_worker import children, runs

from cotswold.bench.server.recorded import read
from cotswold.host import ForkServer
from cotswold.recipe import dump
from cotswold.replicas.replicas import PRELOADED, Replicas, open_replicas
from cotswold.run import Stop
from cotswold.training import RecipeJob, Resume, open_job
from cotswold.training.async_sgd.strategy import settings_of, work_of
from cotswold.training.data.indexed import write_rows

pytestmark = pytest.mark.usefixtures("cold_interpreters")  # as users start them

WORK = "cotswold.training.model_parallel.replica"


def job_with(folder: Path, grid: str, cluster: str = "workers = 1", **training: object) -> RecipeJob:
    """Return a job with enough neurons for several shards per layer, some with rows of two ranks."""
    recipe = recipe_of(folder, cluster, shard_kilobytes=1, **training)
    wide = recipe.read_text().replace("features = 8", "features = 250")
    recipe.write_text(f'{wide}\nmesh = {{ grid = "{grid}" }}\n')
    return open_job(recipe, folder / "run", stores=folder / "stores")


@contextmanager
def opened(job: RecipeJob, folder: Path) -> Iterator[Replicas]:
    rows = folder / "rows"
    write_rows(job.store, "train", rows)
    arguments = {
        "recipe": dump(job.recipe),
        "store": str(job.store.path.absolute()),
        "rows": str(rows.absolute()),
    }
    processes = ForkServer((*PRELOADED, WORK))
    try:
        with open_replicas(
            settings_of(job.recipe), work_of(job.recipe), arguments, processes=processes
        ) as replicas:
            yield replicas
    finally:
        processes.close()


@pytest.mark.soak
def test_each_rank_sends_its_own_shards_to_the_servers(tmp_path: Path) -> None:
    job = job_with(tmp_path, "1x2", "workers = 1, servers = 2", epochs=4)
    sent: dict[str, int] = {}
    taken = 0
    with opened(job, tmp_path) as replicas:
        while not replicas.is_over:
            replicas.proceed(0.02)
            counts = replicas.count()
            for name in {name for each in counts for name, _ in each.sent_bytes}:
                sent[name] = sum(dict(each.sent_bytes).get(name, 0) for each in counts)
            taken = sum(each.accepted_bytes for each in counts)
            assert not any(each.refused for each in counts)
        assert replicas.ledger.total.counted == 4 * 240
        whole = replicas.size * 4
    first, other = sorted(sent)
    assert other == f"{first}/1"
    assert taken == 4 * 15 * whole, "each push is whole, and comes once"
    assert sent[first] + sent[other] == taken
    # three of the five shards of the first matrix, and one of the three of the second
    assert sent[other] == 4 * 15 * 4 * (3 * 50 * 5 + 250), sent


@pytest.mark.soak
@pytest.mark.parametrize(
    ("grid", "servers", "training"),
    [
        ("1x2", 3, {"update_rule": "momentum", "learning_rate": 0.02}),
        ("2x2", 2, {"weight_decay": 0.01, "unit_norm": True}),
        ("3x1", 1, {"update_rule": "adagrad", "learning_rate": 0.05}),
    ],
)
def test_a_model_parallel_replica_gives_what_one_process_gives_to_rounding(
    grid: str, servers: int, training: dict[str, object], tmp_path: Path
) -> None:
    found = []
    for name in ("1x1", grid):
        (tmp_path / name).mkdir()
        cluster = f"workers = 1, servers = {servers}"
        run = finish(
            job_with(tmp_path / name, name, cluster, max_staleness=0, epoch_fraction=1.0, **training)
        )
        assert accounted(run, 4)["counted"] == 960
        found.append(last(run.checkpoints).tensors())
    one, other = found
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.soak
@pytest.mark.parametrize(
    "training",
    [
        {"update_rule": "deltas", "push_every": 2, "pull_every": 3},
        {"push_every": 2, "pull_every": 3, "local_steps": "sgd"},
        {"max_staleness": 1, "staleness_policy": "scale"},
    ],
    ids=str,
)
def test_asynchronous_model_parallel_replicas_learn_and_every_sample_is_accounted_for(
    training: dict[str, object], tmp_path: Path
) -> None:
    job = job_with(tmp_path, "1x2", "workers = 2, servers = 2", epoch_fraction=1.0, **training)
    run = finish(job)
    assert accounted(run, 4)["counted"] == 960
    found = losses(run)
    assert found[-1] < 0.8 * found[0]


@pytest.mark.soak
def test_model_parallel_replicas_restart_after_any_rank_is_killed(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill(event: Mapping[str, object]) -> None:
        if len(killed) < 2 and event["kind"] == "cluster_epoch" and (there := gangs()):
            leader, rank = there[-1]
            killed.append(leader if killed else rank)
            os.kill(killed[-1], signal.SIGKILL)

    job = job_with(tmp_path, "1x2", "workers = 2, servers = 2", epochs=60)
    assert job.train(kill, Stop())
    accounted(job.run, 60)
    why = [
        str(each["reason"]) for each in events(job.run, "cluster_exited") if "SIGKILL" in str(each["reason"])
    ]
    assert len(why) == len(killed) == 2, why
    assert not any(map(runs, killed))


def gangs() -> list[tuple[int, int]]:
    """Return leaders, and another rank of each."""
    leaders = [leader for server in children(os.getpid()) for leader in children(server)]
    return [(leader, rank) for leader in leaders for fork in children(leader) for rank in children(fork)]


@pytest.mark.soak
def test_a_run_of_model_parallel_replicas_resumes_on_another_grid(tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "max_staleness": 0,
        "epoch_fraction": 1.0,
        "update_rule": "momentum",
        "epochs": 6,
    }
    settings["learning_rate"] = 0.01
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    whole = finish(job_with(tmp_path / "whole", "1x2", "workers = 1", **settings))
    stop = Stop()

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "cluster_epoch":
            stop.signal = 2

    stopped = job_with(tmp_path / "stopped", "1x2", "workers = 1", **settings)
    assert not stopped.train(watch, stop)
    again = open_job(
        None,
        stopped.run.path,
        overrides=["mesh.grid=2x1"],
        stores=tmp_path / "stopped" / "stores",
        resume=Resume.ALWAYS,
    )
    run = finish(again)
    assert accounted(run, 6)["counted"] == 6 * 240
    one, other = (last(each.checkpoints).tensors() for each in (whole, run))
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.soak
def test_recorded_traffic_has_the_pushes_of_a_model_parallel_replica_as_one(tmp_path: Path) -> None:
    job = job_with(tmp_path, "1x2", "workers = 1, servers = 2", epochs=2, record_traffic=True)
    run = finish(job)
    found = read(run.path)
    (pushes,) = filter(None, ([each for each in one if each.is_push] for one in found.sessions))
    assert sum(each.samples for each in pushes) == 2 * 240
    assert all(sorted(each.shards) == [shard.number for shard in found.shards] for each in pushes)
