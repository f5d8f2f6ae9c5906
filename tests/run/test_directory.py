"""Run directories: created once, never replaced, one writer at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cotswold.errors import BusyError, RunError
from cotswold.run import EventLog, RunDirectory


def test_a_new_run_keeps_its_recipe_and_environment(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "runs" / "one", 'name = "ü"\n', {"threads": 2})
    again = RunDirectory.open(str(run.path))
    assert again.recipe.read_text(encoding="utf-8") == 'name = "ü"\n'
    assert again.environment() == {"threads": 2}
    assert again == run
    assert sorted(entry.name for entry in run.path.iterdir()) == [
        "environment.json",
        "recipe.toml",
        "run.json",
    ]


def test_an_empty_directory_will_do(tmp_path: Path) -> None:
    assert RunDirectory.create(tmp_path, "a = 1", {}).path == tmp_path


def test_a_second_run_in_a_directory_is_refused_and_the_first_is_as_it_was(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "one", "a = 1", {})
    with pytest.raises(
        RunError,
        match=r"already holds a run; resume it with --resume \(Python: resume=True\), or choose another",
    ):
        RunDirectory.create(tmp_path / "one", "a = 2", {})
    assert RunDirectory.open(tmp_path / "one").recipe.read_text() == "a = 1"


def test_of_two_that_create_at_once_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipe.toml").write_text("a = 1")
    monkeypatch.setattr(Path, "exists", lambda self: False)  # the other came between look and leap
    monkeypatch.setattr(Path, "iterdir", lambda self: iter(()))
    with pytest.raises(RunError, match="already holds a run"):
        RunDirectory.create(tmp_path, "a = 2", {})
    monkeypatch.undo()
    assert (tmp_path / "recipe.toml").read_text() == "a = 1"
    assert RunDirectory.open(tmp_path).environment() == {}


def test_a_directory_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunError, match="contains other files"):
        RunDirectory.create(tmp_path, "a = 1", {})
    with pytest.raises(RunError, match="is a file"):
        RunDirectory.create(tmp_path / "thesis.tex", "a = 1", {})
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_creation_that_was_killed_does_not_stand_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml.123.partial").write_text("a =")
    assert RunDirectory.create(tmp_path, "a = 1", {}).recipe.read_text() == "a = 1"


def test_a_run_without_a_recorded_environment_opens(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("a = 1")
    assert RunDirectory.open(tmp_path).environment() == {}


@pytest.mark.parametrize(("name", "why"), [("", r"it has no recipe\.toml"), ("nowhere", "it does not exist")])
def test_a_directory_without_a_run_is_not_opened(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(RunError, match=f"not the directory of a run: {why}"):
        RunDirectory.open(tmp_path / name)


def test_a_relative_path_still_holds_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunDirectory.create("one", "a = 1", {})
    monkeypatch.chdir("/")
    assert run.recipe.read_text() == "a = 1"


def test_a_second_writer_is_refused_with_the_number_of_the_first(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "a = 1", {})
    other = (
        "import sys; from cotswold.run import RunDirectory; run = RunDirectory.open(sys.argv[1])\n"
        "with run.lock(): print('in', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", other, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "in\n"
        with (
            pytest.raises(BusyError, match=f"two runs in one directory: .* process {holder.pid} on "),
            run.lock(),
        ):
            pass
        holder.kill()
    with run.lock():  # however the first one ended
        assert (tmp_path / "lock").exists()


def test_a_lock_is_free_again_after_its_block(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "a = 1", {})
    for _ in range(2):
        with run.lock(), pytest.raises(BusyError), run.lock():
            pass


def test_a_run_without_a_step_gives_place_to_another_and_is_not_taken_for_it(tmp_path: Path) -> None:
    first = RunDirectory.create_or_replace(tmp_path, "a = 1", {"threads": 1})
    with EventLog(first.events) as log:
        log.write("start_failed", reason="nobody answers")
    (tmp_path / "logs").mkdir()
    second = RunDirectory.create_or_replace(tmp_path, "a = 2", {"threads": 2})
    assert second.recipe.read_text() == "a = 2" and second.environment() == {"threads": 2}
    assert not second.events.exists()
    second.check_known()
    with pytest.raises(BusyError, match="another command has created a new run"):
        first.check_known()


def test_a_run_with_a_step_or_that_is_being_trained_keeps_its_place(tmp_path: Path) -> None:
    run = RunDirectory.create_or_replace(tmp_path, "a = 1", {})
    with run.lock(), pytest.raises(BusyError):
        RunDirectory.create_or_replace(tmp_path, "a = 2", {})
    with EventLog(run.events) as log:
        log.write("step", step=1)
    with pytest.raises(RunError, match="already holds a run"):
        RunDirectory.create_or_replace(tmp_path, "a = 2", {})
    run.check_known()
    assert run.recipe.read_text() == "a = 1"


def test_a_recipe_of_somebodys_own_is_no_run_that_gives_place(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("a = 1")
    with pytest.raises(RunError, match="already holds a run"):
        RunDirectory.create_or_replace(tmp_path, "a = 2", {})
    assert (tmp_path / "recipe.toml").read_text() == "a = 1"
