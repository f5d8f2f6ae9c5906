"""Whole runs with filters on disk, compared with the same runs in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.training.runs import bits, events, finish, resumed, started, stop_after
from tests.support.training.small_recipes import greedy, supervised

from cotswold.api.ranks import local_grid, requested_recipe
from cotswold.data import shuffle_bytes
from cotswold.errors import DiskFullError, MachineError, MemoryLimitError, RecipeError
from cotswold.geometry import StackGeometry
from cotswold.host import memory
from cotswold.recipe import load
from cotswold.run import RunDirectory, Stop
from cotswold.training import Resume, open_job
from cotswold.training.jobs import preflight as fit
from cotswold.training.jobs.memory_estimate import training_bytes
from cotswold.training.parameters.offload import parameters as holder
from cotswold.training.parameters.offload.memory_plan import ROWS_FRACTION, row_capacities

OFFLOADED = 'offload = "disk"'


@pytest.fixture(params=["greedy", "joint"])
def strategy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def in_memory(
    images: Path, stores: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, RunDirectory]:
    """Return a finished run of each strategy with filters in memory."""
    folder = tmp_path_factory.mktemp("in-memory")
    return {
        strategy: finish(started(greedy(images, strategy=strategy), folder / strategy, stores))
        for strategy in ("greedy", "joint")
    }


def test_a_run_from_the_disk_has_the_bits_of_one_in_memory(
    in_memory: dict[str, RunDirectory], strategy: str, images: Path, stores: Path, tmp_path: Path
) -> None:
    plain = in_memory[strategy]
    text = greedy(images, strategy=strategy, more=OFFLOADED)
    streamed = finish(started(text, tmp_path / "streamed", stores))
    assert bits(streamed) == bits(plain)
    validations = [[event["loss"] for event in events(run, "validation")] for run in (plain, streamed)]
    assert validations[0] == validations[1]


@pytest.mark.parametrize(
    ("first", "then"), [("disk", "none"), ("none", "disk"), ("disk", "disk")], ids=lambda one: str(one)
)
def test_a_stopped_run_goes_on_with_the_same_bits_wherever_its_filters_are_then(
    in_memory: dict[str, RunDirectory],
    first: str,
    then: str,
    strategy: str,
    images: Path,
    stores: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = greedy(images, strategy=strategy, more=f'offload = "{first}"')
    assert not stop_after(started(text, tmp_path / "cut", stores), 9, monkeypatch)
    job = open_job(
        None,
        tmp_path / "cut",
        stores=stores,
        resume=Resume.ALWAYS,
        overrides=[f"training.offload={then}"],
    )
    assert bits(finish(job)) == bits(in_memory[strategy])


def test_a_run_that_stops_before_its_first_step_goes_on(
    in_memory: dict[str, RunDirectory], strategy: str, images: Path, stores: Path, tmp_path: Path
) -> None:
    text = greedy(images, strategy=strategy, more=OFFLOADED)
    stop = Stop(signal=2)
    assert not started(text, tmp_path / "cut", stores).train(watch=lambda event: None, stop=stop)
    assert bits(finish(resumed(tmp_path / "cut", stores))) == bits(in_memory[strategy])


def test_nothing_but_checkpoints_is_left_of_a_run(images: Path, stores: Path, tmp_path: Path) -> None:
    run = finish(started(greedy(images, more=OFFLOADED), tmp_path / "run", stores))
    assert not (run.path / "offload").exists()


def test_too_little_disk_is_found_before_there_is_a_run(
    images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, "disk_bytes", lambda recipe: 1 << 60)
    with pytest.raises(DiskFullError, match=r"checkpoints_kept = 1"):
        started(greedy(images, more=OFFLOADED), tmp_path / "run", stores)
    assert not (tmp_path / "run").exists()


def test_a_supervised_recipe_has_nothing_to_offload(images: Path, stores: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="belongs to strategies greedy and joint"):
        started(supervised(images, more=OFFLOADED), tmp_path / "run", stores)


def test_a_network_that_fits_from_the_disk_alone_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (memory, fit):
        monkeypatch.setattr(module, "available_bytes", lambda: 20_000_000_000)
    with pytest.raises(MemoryLimitError, match=r"training\.offload=disk would fit"):
        fit.check_memory(load("coates2013-11b"), 0)


@pytest.mark.parametrize("more", ["", OFFLOADED])
def test_memory_for_the_mixing_of_images_is_counted(
    more: str, images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = started(greedy(images, more=more), tmp_path / "run", stores)
    mixed, needed = (
        shuffle_bytes(job.store, "train"),
        training_bytes(job.recipe, job.recipe.training.batch_size),
    )
    assert mixed == job.store.splits["train"] * job.store.shape.size * 2  # all of them, in float16
    for module in (memory, fit):
        monkeypatch.setattr(module, "available_bytes", lambda: needed + mixed)
    fit.check_resources(job.recipe, job.store, job.run.path)
    for module in (memory, fit):
        monkeypatch.setattr(module, "available_bytes", lambda: needed + mixed - 1)
    with pytest.raises(MemoryLimitError):
        fit.check_resources(job.recipe, job.store, job.run.path)


def test_rows_on_the_disk_leave_memory_for_the_mixing_of_images(
    images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = started(greedy(images, more=OFFLOADED), tmp_path / "run", stores)
    given: list[int] = []

    def noted(layers: list[StackGeometry], size: int, *, is_joint: bool) -> list[int]:
        given.append(size)
        return row_capacities(layers, size, is_joint=is_joint)

    monkeypatch.setattr(holder, "available_bytes", lambda: 1 << 30)
    monkeypatch.setattr(holder, "row_capacities", noted)
    for reading in (0, 1 << 20):
        holder.OffloadedParameters(
            job.recipe, tmp_path / "offload", fresh=True, momentum_name=str, reading=reading
        )
    assert given[0] - given[1] == ROWS_FRACTION * (1 << 20)


def test_the_place_of_filters_is_saved_until_another_is_given(
    in_memory: dict[str, RunDirectory],
    images: Path,
    stores: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = tmp_path / "run"
    assert not stop_after(started(greedy(images), run, stores), 3, monkeypatch)
    job = open_job(None, run, stores=stores, resume=Resume.ALWAYS, overrides=["training.offload=disk"])
    assert not stop_after(job, 5, monkeypatch)
    job = resumed(run, stores)
    assert job.recipe.offloaded
    assert not stop_after(job, 7, monkeypatch)
    assert events(job.run, "resumed")[-1]["overrides"] == ['training.offload="disk"']
    job = open_job(tmp_path / "run.toml", run, stores=stores, resume=Resume.ALWAYS)
    assert job.recipe.offloaded
    job = open_job(None, run, stores=stores, resume=Resume.ALWAYS, overrides=["training.offload=none"])
    assert not stop_after(job, 9, monkeypatch)
    job = resumed(run, stores)
    assert not job.recipe.offloaded
    assert bits(finish(job)) == bits(in_memory["greedy"])
    assert "overrides" in events(job.run, "resumed")[-1] and job.run.overrides == []


def test_a_run_of_a_grid_that_was_brought_to_the_disk_goes_on_there_in_one_process(
    images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    text = greedy(images) + '[mesh]\ngrid = "1x2"\n'
    assert not stop_after(started(text, run, stores), 3, monkeypatch)
    words = ["mesh.grid=none", "training.offload=disk"]
    job = open_job(None, run, stores=stores, resume=Resume.ALWAYS, overrides=words)
    assert not stop_after(job, 5, monkeypatch)
    assert local_grid(requested_recipe(None, run, [], print), print).size == 1
    assert local_grid(requested_recipe(str(tmp_path / "run.toml"), run, [], print), print).size == 1
    assert resumed(run, stores).recipe.offloaded
    with pytest.raises(RecipeError, match=r"or training\.offload=none"):
        requested_recipe(None, run, ["mesh.grid=1x2"], print)
    both = ["mesh.grid=1x2", "training.offload=none"]
    assert local_grid(requested_recipe(None, run, both, print), print).size == 2


def test_files_of_rows_are_not_put_into_a_folder_that_is_a_link(
    images: Path, stores: Path, tmp_path: Path
) -> None:
    job = started(greedy(images, more=OFFLOADED), tmp_path / "run", stores)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    (job.run.path / "offload").symlink_to(tmp_path / "mine")
    with pytest.raises(MachineError, match="offload cannot be written: it is a symbolic link"):
        finish(job)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
