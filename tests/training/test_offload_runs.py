"""Whole runs whose filters are on the disk, beside the same runs in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.training.runs import bits, events, finish, resumed, started, stop_after
from tests.training.small import greedy, supervised

from cotswold.errors import DiskFullError, MemoryLimitError, RecipeError
from cotswold.recipe import load
from cotswold.run import memory
from cotswold.training import Resume, Stop, fit, open_job
from cotswold.training.offload import home

OFFLOADED = 'offload = "disk"'


@pytest.fixture(params=["greedy", "joint"])
def strategy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_run_from_the_disk_has_the_bits_of_one_in_memory(
    strategy: str, pictures: Path, stores: Path, tmp_path: Path
) -> None:
    plain = finish(started(greedy(pictures, strategy=strategy), tmp_path / "plain", stores))
    text = greedy(pictures, strategy=strategy, more=OFFLOADED)
    streamed = finish(started(text, tmp_path / "streamed", stores))
    assert bits(streamed) == bits(plain)
    validations = [[event["loss"] for event in events(run, "validation")] for run in (plain, streamed)]
    assert validations[0] == validations[1]


@pytest.mark.parametrize(
    ("first", "then"), [("disk", "none"), ("none", "disk"), ("disk", "disk")], ids=lambda one: str(one)
)
def test_a_stopped_run_goes_on_with_the_same_bits_wherever_its_filters_are_then(
    first: str,
    then: str,
    strategy: str,
    pictures: Path,
    stores: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = finish(started(greedy(pictures, strategy=strategy), tmp_path / "whole", stores))
    text = greedy(pictures, strategy=strategy, more=f'offload = "{first}"')
    assert not stop_after(started(text, tmp_path / "cut", stores), 9, monkeypatch)
    job = open_job(
        None,
        tmp_path / "cut",
        stores=stores,
        resume=Resume.ALWAYS,
        overrides=[f"training.offload={then}"],
    )
    assert bits(finish(job)) == bits(whole)


def test_a_run_that_stops_before_its_first_step_goes_on(
    strategy: str, pictures: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = greedy(pictures, strategy=strategy, more=OFFLOADED)
    whole = finish(started(text, tmp_path / "whole", stores))
    stop = Stop(signal=2)
    assert not started(text, tmp_path / "cut", stores).train(watch=lambda event: None, stop=stop)
    assert bits(finish(resumed(tmp_path / "cut", stores))) == bits(whole)


def test_nothing_but_checkpoints_is_left_of_a_run(pictures: Path, stores: Path, tmp_path: Path) -> None:
    run = finish(started(greedy(pictures, more=OFFLOADED), tmp_path / "run", stores))
    assert not (run.path / "offload").exists()


def test_too_little_disk_is_found_before_there_is_a_run(
    pictures: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home, "disk_bytes", lambda recipe: 1 << 60)
    with pytest.raises(DiskFullError, match=r"checkpoints_kept = 1"):
        started(greedy(pictures, more=OFFLOADED), tmp_path / "run", stores)
    assert not (tmp_path / "run").exists()


def test_a_supervised_recipe_has_nothing_to_offload(pictures: Path, stores: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="belongs to strategies greedy and joint"):
        started(supervised(pictures, more=OFFLOADED), tmp_path / "run", stores)


def test_a_network_that_fits_from_the_disk_alone_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (memory, fit):
        monkeypatch.setattr(module, "available_bytes", lambda: 20_000_000_000)
    with pytest.raises(MemoryLimitError, match=r"training\.offload=disk would fit"):
        fit.check_memory(load("coates2013-11b"), 0)
