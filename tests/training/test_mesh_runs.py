"""Runs on a grid of ranks: the network of one process, checkpoints independent of the grid."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.mesh.ranks import on_ranks
from tests.support.training.runs import bits, finish, last, losses, recipe_of, started

from cotswold.errors import RunError
from cotswold.geometry import Grid
from cotswold.launch import Membership
from cotswold.mesh import Mesh
from cotswold.run import RunDirectory, Stop, recorder
from cotswold.training import Resume, open_job
from cotswold.training.distributed import RankContext

AGAIN_BYTES = 10_000
STRATEGIES = ("greedy", "joint", "supervised")


def _train(grid: str, recipe: str, run: str, stores: str, resume: bool, stop_at: int) -> bool:
    """Train as one of the ranks of a grid; rank 0 requests a stop at a step, 0 for none."""
    os.fsync = lambda fd: None  # matters to power cuts alone
    recorder.EVENT_SECONDS = 0.0
    group = dist.new_group()
    assert group is not None
    members = Membership(dist.get_rank(), dist.get_world_size(), ("here",) * dist.get_world_size(), group)
    stop = Stop()

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "step" and event["step"] == stop_at:
            stop.signal = 2

    how = Resume.ALWAYS if resume else Resume.NEVER
    rank_context = RankContext(members, Mesh.of(grid), members.size)
    job = open_job(
        None if resume else recipe, run, stores=Path(stores), resume=how, rank_context=rank_context
    )
    return job.train(watch, stop)


def trained(
    grid: str, recipe: Path, run: Path, stores: Path, *, resume: bool = False, stop_at: int = 0
) -> RunDirectory:
    words = (grid, str(recipe), str(run), str(stores), resume, stop_at)
    finished = on_ranks(Grid.parse(grid).size, _train, *words)
    assert set(finished) == {stop_at == 0}
    return RunDirectory.open(run)


def near(first: RunDirectory, second: RunDirectory) -> None:
    """Check for the same validations and, up to rounding, the same last checkpoint."""
    torch.testing.assert_close(losses(first), losses(second), rtol=2e-3, atol=0)
    one, other = last(first.checkpoints), last(second.checkpoints)
    assert sorted(one.names) == sorted(other.names)
    assert one.state["batches"] == other.state["batches"]
    for name in one.names:
        assert one.shape(name) == other.shape(name)
        torch.testing.assert_close(one.read(name), other.read(name), rtol=0.05, atol=0.02)


@pytest.fixture(params=STRATEGIES)
def recipe(request: Any, images: Path, tmp_path: Path) -> Path:
    path = tmp_path / f"{request.param}.toml"
    whole = recipe_of(request.param, images)
    path.write_text(whole.replace("epochs = 4", "epochs = 2").replace("epochs = 2.4", "epochs = 1.4"))
    return path


@pytest.mark.slow
def test_a_grid_trains_the_network_of_one_process_and_any_other_grid_goes_on(
    recipe: Path, stores: Path, tmp_path: Path
) -> None:
    alone = finish(started(recipe.read_text(), tmp_path / "alone", stores))
    trained("2x2", recipe, tmp_path / "many", stores, stop_at=3)
    trained("1x3", recipe, tmp_path / "many", stores, resume=True, stop_at=6)
    job = open_job(None, tmp_path / "many", stores=stores, resume=Resume.ALWAYS)
    near(alone, finish(job))


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_with_the_bits_of_one_that_was_not(
    recipe: Path, stores: Path, tmp_path: Path
) -> None:
    whole = trained("1x3", recipe, tmp_path / "whole", stores)
    trained("1x3", recipe, tmp_path / "parts", stores, stop_at=4)
    both = [bits(one) for one in (trained("1x3", recipe, tmp_path / "parts", stores, resume=True), whole)]
    resumed, uninterrupted = (state["account"].pop("wire_bytes") for _, state in both)
    assert both[0] == both[1]
    # ranks that find each other again, and compare what they start from, send that in addition
    assert 0 <= resumed - uninterrupted < AGAIN_BYTES


def _refused(recipe: str, run: str, stores: str) -> str:
    try:
        _train("1x2", recipe, run, stores, False, 0)
    except RunError as error:
        return str(error)
    return "nothing was refused"


def test_every_rank_hears_what_the_first_one_refuses(images: Path, stores: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "greedy.toml"
    recipe.write_text(recipe_of("greedy", images))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text("")
    said = on_ranks(2, _refused, str(recipe), str(tmp_path / "run"), str(stores))
    assert said[0] == said[1] and "already holds a run" in said[0]
