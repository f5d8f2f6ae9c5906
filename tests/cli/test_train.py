"""`cotswold train`: its options, exit codes and files, in one process."""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.conftest import Desk
from tests.support.cli.command import Said, cotswold

from cotswold.checkpoint import CheckpointManager
from cotswold.host import memory
from cotswold.run import RunDirectory
from cotswold.run.stop import NOTHING_SAVED
from cotswold.training.jobs import preflight as fit


def test_a_finished_run_says_how_to_look_at_it(desk: Desk, tmp_path: Path) -> None:
    said = cotswold("train", desk.stacks_recipe, "--run", tmp_path / "run", "--stores", desk.stores)
    assert said.status == 0
    assert said.out == ""
    assert said.err.splitlines()[-1] == (
        f"cotswold: finished; write a report with: cotswold report {tmp_path / 'run'}"
    )
    assert "stack 1: 46,656 weights" in said.err
    assert "stack 2" in said.err and "validation: loss" in said.err


def test_a_run_without_a_directory_is_called_after_its_recipe(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cotswold("train", desk.stacks_recipe, "--stores", desk.stores).status == 0
    assert (tmp_path / "runs" / "small" / "events.jsonl").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_overrides_reach_the_recipe_that_the_run_keeps(desk: Desk, tmp_path: Path) -> None:
    words = ("--set", "training.epochs=0.5", "--set", "objective.sparsity=0.2")
    said = cotswold("train", desk.stacks_recipe, "--run", tmp_path / "run", "--stores", desk.stores, *words)
    assert said.status == 0
    assert "sparsity = 0.2" in (tmp_path / "run" / "recipe.toml").read_text()


def resume(run: Path, desk: Desk, *words: object) -> Said:
    return cotswold("train", *words, "--run", run, "--resume", "--stores", desk.stores)


def copied(run: Path, to: Path) -> Path:
    shutil.copytree(run, to)
    return to


def test_a_directory_that_holds_a_run_is_refused_without_resume(desk: Desk) -> None:
    said = cotswold("train", desk.stacks_recipe, "--run", desk.stacks, "--stores", desk.stores)
    assert said.status == 2
    assert said.error == (
        f"{desk.stacks} already holds a run; resume it with --resume (Python: resume=True), or choose "
        "another directory"
    )


def test_a_directory_that_holds_other_files_is_refused_and_left_alone(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    said = cotswold("train", desk.stacks_recipe, "--run", tmp_path, "--stores", desk.stores)
    assert said.status == 2
    assert "contains other files" in said.error
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_resuming_with_another_recipe_is_refused(desk: Desk) -> None:
    said = resume(desk.stacks, desk, desk.stacks_recipe, "--set", "network.stacks.0.channels=4")
    assert said.status == 2
    assert "network.stacks.0.channels (3 there, 4 here)" in said.error


def test_a_run_is_taken_up_with_other_threads_from_any_folder_without_naming_its_stores(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copied(desk.stacks, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    words = ("train", "--run", run, "--resume", "--set")
    assert cotswold(*words, "training.threads=2").status == 0
    said = cotswold(*words, "training.relative_rate=2.5")
    assert said.status == 2
    assert "training.relative_rate" in said.error
    assert cotswold("report", "run").err == ""  # with whitening taken back: it found the store
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_finished_run_is_extended_by_its_epochs_and_says_so(desk: Desk, tmp_path: Path) -> None:
    run = copied(desk.stacks, tmp_path / "run")
    said = resume(run, desk, "--set", "training.epochs=3")
    assert said.status == 0, said.err
    assert "extended to 3 epochs, by phases with their own schedule" in said.err
    assert "stack 1: 46,656 weights, 3 x 16 x 16 -> 3 x 12 x 12, trained further" in said.err
    assert cotswold("verify", run).status == 0
    assert cotswold("report", run).status == 0
    assert "extended" not in resume(run, desk, "--set", "training.epochs=3").err
    said = resume(run, desk, "--set", "training.epochs=1")
    assert said.status == 2
    assert "is trained for 3 epochs, but 1 were requested" in said.error
    (run / "extended.json").write_text("{")
    said = cotswold("verify", run)
    assert said.status == 1 and "extended.json" in said.out


def test_resuming_where_there_is_nothing_is_refused(desk: Desk, tmp_path: Path) -> None:
    said = resume(tmp_path / "nothing", desk)
    assert said.status == 2
    assert "there is no run in" in said.error


def test_a_second_run_in_the_directory_is_refused(desk: Desk) -> None:
    with RunDirectory.open(desk.stacks).lock():
        said = resume(desk.stacks, desk)
    assert said.status == 1
    assert said.error.startswith("two runs in one directory: ")
    assert f"is in use by process {os.getpid()} on {platform.node()} since " in said.error


def test_a_run_in_use_is_refused_before_ranks_are_started_again_and_again(desk: Desk, tmp_path: Path) -> None:
    run = copied(desk.stacks, tmp_path / "run")
    with RunDirectory.open(run).lock():
        said = cotswold("train", "--run", run, "--resume", "--grid", "1x2", "--restarts", 3)
    assert said.status == 1
    assert said.error.startswith("two runs in one directory: ")
    assert not (run / "logs").exists()


def test_a_damaged_checkpoint_is_passed_over_and_named(desk: Desk, tmp_path: Path) -> None:
    run = copied(desk.stacks, tmp_path / "run")
    *_, newest = CheckpointManager(run / "checkpoints").paths()
    (newest / "00000.safetensors").write_bytes(b"")
    said = resume(run, desk)
    assert said.status == 0
    line = next(line for line in said.err.splitlines() if line.startswith("resumed after step"))
    file = newest / "00000.safetensors"
    assert f"(skipped: {file} is damaged: 0 bytes long instead of 186736)" in line


def test_a_run_with_nothing_but_damaged_checkpoints_is_the_machines_fault(desk: Desk, tmp_path: Path) -> None:
    run = copied(desk.stacks, tmp_path / "run")
    for path in CheckpointManager(run / "checkpoints").paths():
        (path / "manifest.json").unlink()
    said = resume(run, desk)
    assert said.status == 1
    assert "every checkpoint" in said.error and "is damaged" in said.error


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Limit the size of files: beyond it the system reports the error of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_ends_the_run_and_what_was_saved_stays(desk: Desk, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = ("--set", "training.checkpoint_minutes=0.000001")
    with files_of_at_most(10_000):
        said = cotswold("train", desk.stacks_recipe, "--run", run, "--stores", desk.stores, *first)
    assert said.status == 1
    assert "no room left to write" in said.error and NOTHING_SAVED in said.error
    assert CheckpointManager(run / "checkpoints").paths() == []
    assert resume(run, desk).status == 0


def test_divergence_ends_the_run_with_a_remedy(desk: Desk, tmp_path: Path) -> None:
    said = cotswold(
        "train",
        desk.layers_recipe,
        "--run",
        tmp_path / "run",
        "--stores",
        desk.stores,
        "--set",
        "training.learning_rate=1e30",
    )
    assert said.status == 1
    assert "try a smaller learning rate (training.learning_rate)" in said.error


def test_a_network_that_does_not_fit_is_refused_with_figures_before_there_is_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (memory, fit):
        monkeypatch.setattr(module, "available_bytes", lambda: 8_000_000_000)
    said = cotswold("train", "coates2013-11b", "--run", tmp_path / "run", "--stores", tmp_path / "stores")
    assert said.status == 1
    assert "training coates2013-11b needs" in said.error
    assert "8.0 GB are free; not even training.batch_size=1 would fit" in said.error
    assert list(tmp_path.iterdir()) == []


def test_events_are_lines_of_json_with_a_time(desk: Desk) -> None:
    events = [json.loads(line) for line in (desk.layers / "events.jsonl").read_text().splitlines()]
    assert [events[0]["kind"], events[-1]["kind"]] == ["start", "end"]
    assert all(event["time"] > 1e9 and event["seconds"] >= 0 for event in events)


def test_an_interrupt_before_training_is_answered_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cotswold.api.ranks.requested_recipe", interrupt)
    said = cotswold("train", "demo")
    assert said.status == 130 and said.error == "stopped"
