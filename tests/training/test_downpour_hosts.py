"""Recipes of strategy downpour whose replicas are several processes: on one copy of the weights, or ranks."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from tests.support.training.runs import events, finish, last, losses
from tests.training.async_sgd.test_strategy import accounted, job_of, recipe_of
from tests.training.model_parallel.test_full_batch_worker import children, runs

import cotswold
from cotswold.errors import RecipeError
from cotswold.recipe import load
from cotswold.run import Stop
from cotswold.training import RecipeJob

pytestmark = pytest.mark.usefixtures("template")  # they look at the tree of processes


def started() -> list[int]:
    """Return the processes of replicas: forks of the fork server's processes that have their own forks."""
    leaders = [worker for server in children(os.getpid()) for worker in children(server)]
    return [each for leader in leaders for fork in children(leader) for each in children(fork)]


@pytest.mark.soak
@pytest.mark.parametrize("rule", ["sgd", "deltas"])
def test_replicas_of_two_processes_learn_and_every_sample_is_accounted_for(rule: str, tmp_path: Path) -> None:
    settings: dict[str, object] = {"update_rule": rule, "push_every": 2, "epoch_fraction": 1.0}
    run = finish(job_of(tmp_path, "workers = 2, processes = 2", **settings))
    assert accounted(run, 4)["counted"] == 960
    found = losses(run)
    assert found[-1] < 0.8 * found[0]
    assert len(cotswold.predict(run.path, tmp_path / "x.npy")) == 300


@pytest.mark.soak
@pytest.mark.parametrize("cluster", ["workers = 2, processes = 2", "workers = 1"])
def test_a_killed_process_ends_its_replica_which_is_started_again(cluster: str, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill(event: Mapping[str, object]) -> None:
        if not killed and event["kind"] == "cluster_epoch" and (there := started()):
            killed.append(there[0])
            os.kill(there[0], signal.SIGKILL)

    job = job_of(tmp_path, cluster, epochs=30)
    if "processes" not in cluster:
        job = with_grid(tmp_path, "1x2", epochs=30)
    assert job.train(kill, Stop())
    accounted(job.run, 30)
    (end,) = [each for each in events(job.run, "cluster_exited") if "SIGKILL" in str(each["reason"])]
    assert "end together" in str(end["reason"]), end
    assert not any(map(runs, killed))


@pytest.mark.soak
def test_a_stopped_rank_is_named_and_its_replica_is_started_again(tmp_path: Path) -> None:
    stopped: list[int] = []

    def stop(event: Mapping[str, object]) -> None:
        if not stopped and event["kind"] == "cluster_epoch" and (there := started()):
            stopped.append(there[0])
            os.kill(there[0], signal.SIGSTOP)

    job = with_grid(tmp_path, "1x2", cluster="workers = 1, heartbeat_timeout = 2", epochs=30)
    assert job.train(stop, Stop())
    accounted(job.run, 30)
    (why,) = [
        str(each["reason"]) for each in events(job.run, "cluster_exited") if "SIGSTOP" in str(each["reason"])
    ]
    assert f"rank 1 of replica-1 (process {stopped[0]}) has been stopped for" in why
    assert not runs(stopped[0])


def with_grid(
    folder: Path, grid: str, in_flight: int = 1, cluster: str = "workers = 1", **training: object
) -> RecipeJob:
    recipe = recipe_of(folder, cluster, **training)
    mesh = f'grid = "{grid}", microbatches = {in_flight}'
    recipe.write_text(f"{recipe.read_text()}\nmesh = {{ {mesh} }}\n")
    return cotswold.training.open_job(recipe, folder / "run", stores=folder / "stores")


@pytest.mark.soak
def test_a_model_parallel_replica_gives_what_a_single_process_replica_gives_to_rounding(
    tmp_path: Path,
) -> None:
    found = []
    for grid, in_flight in (("1x1", 1), ("1x2", 2)):
        (tmp_path / grid).mkdir()
        run = finish(with_grid(tmp_path / grid, grid, in_flight, max_staleness=0, epoch_fraction=1.0))
        assert accounted(run, 4)["counted"] == 960
        found.append(last(run.checkpoints).tensors())
    one, other = found
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("cluster", "training", "mesh", "complaint"),
    [
        ("workers = 2, processes = 2", {"threads": 2}, "1x1", "one thread"),
        ("workers = 2, processes = 2", {}, "1x2", "processes or mesh.grid"),
        ("workers = 2", {}, "auto", "auto is not possible"),
        ("workers = 2", {}, "1x1, 2", "microbatches is for the ranks"),
    ],
)
def test_what_cannot_be_is_refused(
    cluster: str, training: dict[str, object], mesh: str, complaint: str, tmp_path: Path
) -> None:
    recipe = recipe_of(tmp_path, cluster, **training)
    grid, _, in_flight = mesh.partition(", ")
    words = f'grid = "{grid}", microbatches = {in_flight or 1}'
    recipe.write_text(f"{recipe.read_text()}\nmesh = {{ {words} }}\n")
    with pytest.raises(RecipeError, match=complaint):
        load(str(recipe))
