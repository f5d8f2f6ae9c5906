"""No file of a run is opened through a link, which could change other files of the user."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cotswold.checkpoint import CheckpointManager
from cotswold.errors import CheckpointError, CotswoldError, MachineError, RunError
from cotswold.run import EventLog, RunDirectory, read_events
from cotswold.run.loggers.tensorboard import TensorBoard

SECRET = '{"kind":"thesis"}\n' * 9


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Return a run with two checkpoints and a line of events."""
    run = RunDirectory.create(tmp_path / "run", 'name = "x"\n', {})
    for step in (1, 2):
        CheckpointManager(run.checkpoints).save(step, {"w": torch.zeros(3)}, {})
    with EventLog(run.events) as log:
        log.write("start")
    return run


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Return a foreign file of the user."""
    path = tmp_path / "thesis.tex"
    path.write_text(SECRET)
    return path


USES: dict[str, tuple[Callable[[RunDirectory], object], type[CotswoldError]]] = {
    "recipe.toml": (lambda run: RunDirectory.open(run.path), RunError),
    "run.json": (lambda run: run.identity, MachineError),
    "environment.json": (lambda run: run.environment(), MachineError),
}


@pytest.mark.parametrize("name", USES)
def test_a_file_that_is_a_link_is_refused_by_name(run: RunDirectory, elsewhere: Path, name: str) -> None:
    use, error = USES[name]
    (run.path / name).unlink()
    (run.path / name).symlink_to(elsewhere)
    with pytest.raises(error, match=rf"{name} cannot be read: it is a symbolic link, which is not followed"):
        use(run)


def test_events_are_neither_written_nor_read_through_a_link(run: RunDirectory, elsewhere: Path) -> None:
    run.events.unlink()
    run.events.symlink_to(elsewhere)
    with pytest.raises(MachineError, match=r"events\.jsonl cannot be written: it is a symbolic link"):
        EventLog(run.events)
    with pytest.raises(MachineError, match=r"events\.jsonl cannot be read: it is a symbolic link"):
        list(read_events(run.events))
    assert elsewhere.read_text() == SECRET


@pytest.mark.parametrize("name", ["manifest.json", "00000.safetensors"])
def test_a_checkpoint_with_a_link_is_passed_over(run: RunDirectory, tmp_path: Path, name: str) -> None:
    file = run.checkpoints / "00000002" / name
    shutil.move(file, tmp_path / name)
    file.symlink_to(tmp_path / name)
    found = CheckpointManager(run.checkpoints).latest()
    assert found.checkpoint is not None and found.checkpoint.step == 1
    assert f"{name} cannot be read: it is a symbolic link" in found.skipped[0]


def test_a_checkpoint_that_is_a_link_is_passed_over(run: RunDirectory, tmp_path: Path) -> None:
    shutil.move(run.checkpoints / "00000002", tmp_path / "taken")
    (run.checkpoints / "00000002").symlink_to(tmp_path / "taken")
    found = CheckpointManager(run.checkpoints).latest()
    assert found.checkpoint is not None and found.checkpoint.step == 1
    assert "00000002 is a symbolic link" in found.skipped[0]


def test_checkpoints_are_not_saved_into_a_folder_that_is_a_link(run: RunDirectory, tmp_path: Path) -> None:
    shutil.move(run.checkpoints, tmp_path / "mine")
    (tmp_path / "mine" / "draft.partial").mkdir()
    run.checkpoints.symlink_to(tmp_path / "mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match="checkpoints cannot be written: it is a symbolic link"):
        CheckpointManager(run.checkpoints).save(3, {}, {})
    with pytest.raises(CheckpointError, match="checkpoints is a symbolic link, which is not followed"):
        CheckpointManager(run.checkpoints).latest()
    assert sorted(tmp_path.rglob("*")) == before


def test_curves_are_not_written_into_a_folder_that_is_a_link(run: RunDirectory, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "mine").mkdir()
    run.tensorboard.symlink_to(tmp_path / "mine")
    with EventLog(run.events, observers=[TensorBoard(run.tensorboard)]) as log:
        log.write("step", step=1, loss=0.5)
    assert [event["kind"] for event in read_events(run.events)] == ["start", "step", "observer_lost"]
    assert list((tmp_path / "mine").iterdir()) == []
