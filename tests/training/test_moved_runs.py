"""Runs whose samples have moved since the start."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.support.training.runs import finish

import cotswold
from cotswold.data.sources import contents
from cotswold.errors import SourceError, StoreError
from cotswold.run import RunDirectory
from cotswold.training import RecipeJob, Resume, open_job, source_note, store_of
from cotswold.training.jobs import run_store as run_stores

RECIPE = """
name = "moved"
data = { type = "vectors", source = "old/x.npy", labels = "file", validation = 0.2 }
network = { layers = [{ type = "linear", features = 4 }] }
training = { strategy = "supervised", batch_size = 20, epochs = 1, learning_rate = 0.05 }
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a finished run with its samples, moved from `old` to `new`; the stores are in `old/stores`."""
    monkeypatch.chdir(tmp_path)
    numbers = np.random.default_rng(0)
    Path("old").mkdir()
    np.save("old/x.npy", numbers.normal(size=(60, 5)).astype(np.float32))
    np.save("old/x.labels.npy", np.arange(60) % 3)
    Path("recipe.toml").write_text(RECIPE)
    finish(open_job("recipe.toml", "old/run", stores=Path("old/stores")))
    Path("old").rename("new")
    return Path("new/run")


def resumed(run: Path, *overrides: str, stores: Path | None = None) -> RecipeJob:
    return open_job(
        None, run, overrides=["training.epochs=2", *overrides], stores=stores, resume=Resume.ALWAYS
    )


def test_a_run_moved_with_its_samples_goes_on_once_their_place_is_named(run: Path) -> None:
    shutil.rmtree("new/stores")
    with pytest.raises(SourceError, match=r"old/x\.npy.*does not exist.*--set data\.source="):
        resumed(run)
    finish(resumed(run, "data.source=new/x.npy"))
    assert resumed(run).recipe.data.model_dump()["source"] == "new/x.npy", "it is remembered"
    shutil.rmtree("stores")
    assert store_of(RunDirectory.open(run)).splits["train"] == 48, "evaluations find the samples, too"


def test_the_place_of_samples_may_change_back(run: Path) -> None:
    finish(resumed(run, "data.source=new/x.npy"))
    Path("new").rename("old")
    finish(resumed(Path("old/run"), "data.source=old/x.npy", "training.epochs=3"))
    assert RunDirectory.open("old/run").overrides == []


@pytest.mark.parametrize("is_store_kept", [True, False])
def test_samples_that_are_others_are_refused_at_a_new_place(run: Path, is_store_kept: bool) -> None:
    if is_store_kept:
        Path("old").mkdir()
        Path("new/stores").rename("old/stores")  # where the run looks first
    samples = np.load("new/x.npy")
    samples[7, 2] += 1
    np.save("new/x.npy", samples)
    with pytest.raises(StoreError, match="are not those that"):
        resumed(run, "data.source=new/x.npy")


def test_other_samples_are_refused_although_the_store_of_the_run_is_where_stores_are_kept(run: Path) -> None:
    shutil.move("new/stores", "stores")
    samples = np.load("new/x.npy")
    samples[7, 2] += 1
    np.save("new/x.npy", samples)
    with pytest.raises(StoreError, match="are not those that"):
        resumed(run, "data.source=new/x.npy")


def test_a_store_serves_a_moved_run_whose_samples_are_gone(run: Path) -> None:
    shutil.move("new/stores", "stores")
    finish(resumed(run, "data.source=new/x.npy"))
    Path("new/x.npy").unlink()
    assert store_of(RunDirectory.open(run)).splits["train"] == 48


def test_the_folder_of_its_store_is_all_that_a_moved_run_needs(run: Path) -> None:
    Path("new/x.npy").unlink()
    finish(resumed(run, stores=Path("new/stores")))


def test_a_run_from_a_source_goes_on_from_a_store_of_the_same_samples(run: Path) -> None:
    (store,) = Path("new/stores").iterdir()
    finish(resumed(run, "data.source=", f"data.store={store}"))
    assert store_of(RunDirectory.open(run)).path == store


def change_a_sample() -> None:
    Path("new").rename("old")
    samples = np.load("old/x.npy")
    samples[7, 2] += 1
    np.save("old/x.npy", samples)


def test_samples_that_changed_in_their_place_are_refused_if_the_place_is_named(run: Path) -> None:
    change_a_sample()
    with pytest.raises(StoreError, match=r"old/x\.npy are not those that.*resume without data\.source"):
        resumed(Path("old/run"), "data.source=old/x.npy")
    with pytest.raises(StoreError, match="are not those that"):
        resumed(Path("old/run"), "data.source=old/x.npy", stores=Path("old/stores"))
    finish(resumed(Path("old/run")))  # the run's own store is there


def test_a_run_may_be_told_the_place_that_its_samples_have(run: Path) -> None:
    Path("new").rename("old")
    finish(resumed(Path("old/run"), "data.source=old/x.npy"))


@pytest.mark.parametrize("overrides", [(), ("data.source=old/x.npy",)])
def test_samples_that_changed_are_refused_before_they_are_prepared(
    run: Path, overrides: tuple[str, ...]
) -> None:
    change_a_sample()
    shutil.rmtree("old/stores")
    with pytest.raises(StoreError, match="are not those that"):
        resumed(Path("old/run"), *overrides)
    assert not Path("old/stores").exists() and not Path("stores").exists()


@pytest.fixture
def unmoved(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the run in its first place; digests of new files are recorded at once, in a separate cache."""
    monkeypatch.setattr(contents, "SETTLED_NS", -(10**12))
    monkeypatch.setattr("cotswold.data.sources.contents.code_cache.folder", lambda: tmp_path / "cache")
    Path("new").rename("old")
    return Path("old/run")


def note_of(run: Path) -> str | None:
    job = resumed(run)
    return source_note(job.run, job.recipe, job.store)


def test_samples_that_changed_in_their_place_are_noted_where_a_run_goes_on_without_them(
    unmoved: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert note_of(unmoved) is None
    samples = np.load("old/x.npy")
    samples[7, 2] += 1
    np.save("old/x.npy", samples)
    said = note_of(unmoved)
    (store,) = Path("old/stores").iterdir()
    assert said is not None and "files of old/x.npy have changed since the run began" in said
    assert f"old/run continues with the samples of its store {store.absolute()}" in said
    cotswold.train_recipe(directory=unmoved, overrides=["training.epochs=2"], resume=True, progress=False)
    assert said in caplog.messages
    Path("old/x.npy").unlink()
    assert note_of(unmoved) is None


def test_a_source_that_takes_long_to_read_is_compared_by_sizes_times_and_inodes(
    unmoved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_stores, "_READ_LIMIT_BYTES", 10)
    assert note_of(unmoved) is None, "it was never read here"
    with monkeypatch.context() as patch:
        patch.setattr(run_stores, "_READ_LIMIT_BYTES", 1 << 20)
        assert note_of(unmoved) is None
    assert note_of(unmoved) is None, "nothing is to be read"
    np.save("old/x.npy", np.load("old/x.npy"))
    said = note_of(unmoved)
    assert said is not None and "than when they were last read, and may have changed" in said
