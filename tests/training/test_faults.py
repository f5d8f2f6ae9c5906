"""Failures around a run: disks, memory, damage, a second process. Earlier results are kept."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.training.runs import bits, events, finish, last, resumed, started, stop_after
from tests.support.training.small_recipes import greedy, supervised

from cotswold.errors import (
    BusyError,
    CheckpointError,
    CotswoldError,
    DiskFullError,
    GeometryError,
    MachineError,
    MemoryLimitError,
    RecipeError,
    RunError,
    StoreError,
)
from cotswold.host import memory
from cotswold.run import Stop
from cotswold.training import Job, Resume, load_stacks, open_job
from cotswold.training.jobs import preflight as fit


def damage(file: Path) -> None:
    """Change one byte in the middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_and_named(
    images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = finish(started(greedy(images), tmp_path / "whole", stores))
    run = tmp_path / "run"
    assert not stop_after(started(greedy(images), run, stores), 3, monkeypatch)
    assert not stop_after(resumed(run, stores), 7, monkeypatch)
    damage(run / "checkpoints" / "00000007" / "00000.safetensors")
    job = resumed(run, stores)
    finish(job)
    (event,) = [each for each in events(job.run, "resumed") if each["skipped_checkpoints"]]
    assert event["step"] == 3
    assert "00000007/00000.safetensors is damaged" in str(event["skipped_checkpoints"])
    assert bits(job.run) == bits(whole)


def test_a_run_whose_every_checkpoint_is_damaged_is_not_begun_anew(
    images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    assert not stop_after(started(greedy(images), run, stores), 3, monkeypatch)
    (run / "checkpoints" / "00000003" / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"every checkpoint in .* is damaged: .*manifest\.json"):
        finish(resumed(run, stores))
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["00000003"]


def test_a_full_disk_stops_the_run_and_leaves_the_last_checkpoint(
    images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = finish(started(greedy(images), tmp_path / "whole", stores))
    run = tmp_path / "run"
    job = started(greedy(images), run, stores)
    assert not stop_after(job, 5, monkeypatch)
    before, write, room = bits(job.run), os.write, 20_000

    def full(file: int, content: bytes | memoryview) -> int:
        nonlocal room
        room -= len(content)
        if room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, content)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DiskFullError, match=r"no room left .* free some space and resume"):
        finish(resumed(run, stores))
    monkeypatch.setattr(os, "write", write)
    assert bits(job.run) == before
    assert bits(finish(resumed(run, stores))) == bits(whole)


def test_a_second_run_in_the_directory_is_refused_while_the_first_goes_on(
    images: Path, stores: Path, tmp_path: Path
) -> None:
    job = started(greedy(images), tmp_path / "run", stores)
    with job.run.lock(), pytest.raises(BusyError, match=f"in use by process {os.getpid()}"):
        finish(resumed(tmp_path / "run", stores))
    finish(resumed(tmp_path / "run", stores))


def test_a_directory_that_holds_a_run_is_not_begun_again(images: Path, stores: Path, tmp_path: Path) -> None:
    finish(started(greedy(images), tmp_path / "run", stores))
    with pytest.raises(RunError, match="already holds a run; resume it with --resume"):
        started(greedy(images), tmp_path / "run", stores)
    for how in (Resume.ALWAYS, Resume.IF_STARTED):
        with pytest.raises(RunError, match=r"there is no run in .*elsewhere to resume; name a recipe"):
            open_job(None, tmp_path / "elsewhere", stores=stores, resume=how)


@pytest.mark.parametrize(
    ("device", "error", "words"),
    [
        ("gpu", RecipeError, "is not a device"),
        ("meta", RecipeError, "is not a device"),
        ("cuda:99", MachineError, "is not available on this machine"),
    ],
)
def test_a_device_that_is_not_there_is_refused_before_a_directory_is_made(
    images: Path, tmp_path: Path, device: str, error: type[CotswoldError], words: str
) -> None:
    text = greedy(images, more=f'device = "{device}"')
    with pytest.raises(error, match=rf'training\.device = "{device}" {words}'):
        started(text, tmp_path / "run", tmp_path / "stores")
    assert not (tmp_path / "run").exists() and not (tmp_path / "stores").exists()


def test_what_no_result_depends_on_may_change_when_a_run_is_taken_up(
    images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = finish(started(greedy(images), tmp_path / "whole", stores))
    run = tmp_path / "run"
    assert not stop_after(started(greedy(images), run, stores), 5, monkeypatch)

    def again(*overrides: str) -> Job:
        return open_job(None, run, overrides=overrides, resume=Resume.ALWAYS)

    with pytest.raises(RecipeError, match="is not a device"):
        again("training.device=gpu")
    changed = again(
        "training.threads=2",
        "training.device=cpu",
        "training.checkpoint_minutes=7.5",
        "training.checkpoints_kept=1",
    )
    assert changed.recipe.training.checkpoints_kept == 1 and changed.recipe.training.threads == 2
    # two threads may round otherwise than one
    assert bits(finish(again("training.checkpoint_minutes=7.5", "training.checkpoints_kept=1"))) == bits(
        whole
    )
    assert len(list((run / "checkpoints").iterdir())) == 1


def test_a_run_records_its_store_and_continues_without_it(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(images)
    job = started(greedy(tmp_path / "link"), tmp_path / "run", tmp_path / "elsewhere")
    (tmp_path / "link").unlink()
    (tmp_path / "desk").mkdir()
    monkeypatch.chdir(tmp_path / "desk")
    found = open_job(None, tmp_path / "run", resume=Resume.ALWAYS).store
    assert found.path == job.store.path and list(Path.cwd().iterdir()) == []
    (tmp_path / "link").symlink_to(images)
    other = started(greedy(images, more="seed = 1").replace("0.2", "0.3"), tmp_path / "other", tmp_path / "s")
    for replace in (lambda: None, lambda: shutil.copytree(other.store.path, job.store.path)):
        shutil.rmtree(job.store.path)
        replace()
        prepared = open_job(None, tmp_path / "run", resume=Resume.ALWAYS).store
        assert prepared.path.parent in (tmp_path / "elsewhere", Path("stores"))
        assert prepared.identity == job.store.identity


def test_resuming_with_another_recipe_names_what_differs(images: Path, stores: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(greedy(images))
    open_job(recipe, tmp_path / "run", stores=stores)
    with pytest.raises(RunError, match=r"training\.batch_size \(8 there, 6 here\)"):
        open_job(
            recipe, tmp_path / "run", overrides=["training.batch_size=6"], stores=stores, resume=Resume.ALWAYS
        )
    with pytest.raises(RunError, match=r"network\.stacks\.1\.kernel_size \(4 there, 3 here\)"):
        open_job(
            recipe,
            tmp_path / "run",
            overrides=["network.stacks.1.kernel_size=3"],
            stores=stores,
            resume=Resume.ALWAYS,
        )
    with pytest.raises(
        RunError, match=r"training\.batch_size \(8 there, 6 here\); resume it without changing"
    ):
        open_job(None, tmp_path / "run", overrides=["training.batch_size=6"], resume=Resume.ALWAYS)
    changed = ["price.hardware_dollars=900.0"]
    job = open_job(recipe, tmp_path / "run", overrides=changed, stores=stores, resume=Resume.IF_STARTED)
    assert events(finish(job), "end")[-1]["cents_per_mflops"] is not None


@pytest.mark.parametrize("kind", ["greedy", "joint", "supervised"])
def test_a_run_that_does_not_fit_is_refused_before_anything_is_prepared_or_allocated(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    layers = '[[network.layers]]\ntype = "linear"\nfeatures = 2000000000\n'
    huge = {
        "greedy": greedy(images).replace("channels = 3", "channels = 90000000"),
        "joint": greedy(images, strategy="joint").replace("channels = 3", "channels = 90000000"),
        "supervised": supervised(images, layers=layers),
    }
    with pytest.raises(MemoryLimitError, match=r"needs [\d.]+ GB .* GB are free; not even"):
        started(huge[kind], tmp_path / "run", tmp_path / "stores")
    assert not (tmp_path / "run").exists()
    assert kind == "supervised" or not (tmp_path / "stores").exists()


def test_stacks_that_do_not_fit_in_memory_are_not_built_to_be_looked_at(
    images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finish(started(greedy(images), tmp_path / "run", stores))
    tensors = last(run.checkpoints).tensors()
    filters = sum(tensor.nbytes for name, tensor in tensors.items() if name.endswith(".filters"))
    monkeypatch.setattr(memory, "available_bytes", lambda: filters)
    load_stacks(run)
    monkeypatch.setattr(memory, "available_bytes", lambda: filters - 1)
    with pytest.raises(MemoryLimitError, match=r"loading .*run, whose filters .* a machine with more"):
        load_stacks(run)


def test_a_batch_that_does_not_fit_is_answered_with_one_that_does(
    images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 4_000_000
    for module in (memory, fit):
        monkeypatch.setattr(module, "available_bytes", lambda: free)
    text = greedy(images)
    fitting = "4000"
    for _ in range(2):  # what the mixing of images takes is known when they are prepared
        with pytest.raises(MemoryLimitError, match=r"training\.batch_size=\d+ would fit") as caught:
            started(text.replace("batch_size = 8", f"batch_size = {fitting}"), tmp_path / "run", stores)
        fitting = str(caught.value).partition("training.batch_size=")[2].split()[0]
    finish(started(text.replace("batch_size = 8", f"batch_size = {fitting}"), tmp_path / "run", stores))


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ('type = "convolution"\nchannels = 4\nkernel_size = 30', r"layer 1 \(convolution\).*30"),
        (
            'type = "linear"\nfeatures = 4\n[[network.layers]]\ntype = "pool"',
            r"layer 2 \(pool\).*needs a map",
        ),
    ],
)
def test_layers_that_do_not_fit_are_refused_before_a_directory_is_made(
    images: Path, stores: Path, tmp_path: Path, layers: str, words: str
) -> None:
    with pytest.raises(GeometryError, match=words):
        started(supervised(images, layers=f"[[network.layers]]\n{layers}\n"), tmp_path / "run", stores)
    assert not (tmp_path / "run").exists()


def test_a_damaged_chunk_of_the_store_is_named(images: Path, tmp_path: Path) -> None:
    job = started(greedy(images), tmp_path / "run", tmp_path / "stores")
    chunk = max(job.store.path.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    spoil: list[Callable[[], object]] = [lambda: os.truncate(chunk, chunk.stat().st_size // 2), chunk.unlink]
    for each in spoil:
        each()
        with pytest.raises(StoreError, match=str(chunk.relative_to(job.store.path))):
            finish(resumed(tmp_path / "run", tmp_path / "stores"))


def test_images_that_are_gone_do_not_keep_a_run_from_being_taken_up(
    stores: Path, tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(images)
    job = started(greedy(tmp_path / "link"), tmp_path / "run", stores)
    assert not stop_after(job, 3, monkeypatch)
    (tmp_path / "link").unlink()
    finish(resumed(tmp_path / "run", stores))


def test_a_stop_in_the_last_step_ends_the_run(images: Path, stores: Path, tmp_path: Path) -> None:
    stop = Stop()
    job = started(greedy(images), tmp_path / "run", stores)

    def watch(event: object) -> None:
        if isinstance(event, dict) and event["kind"] == "phase_end" and event["phase"] == 1:
            stop.signal = 2

    assert job.train(watch=watch, stop=stop)
    assert last(job.run.checkpoints).state["position"] == {"phase": 2, "step": 0, "total": 28}
