"""Events as curves in TensorBoard, if it is installed."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cotswold.run import EventLog, read_events
from cotswold.run.loggers.tensorboard import TensorBoard


def _read(folder: Path) -> Any:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    return accumulator.EventAccumulator(str(folder)).Reload()


def _session(folder: Path, *events: Mapping[str, object]) -> None:
    """Write the events of one session of a run."""
    with EventLog(folder / "events.jsonl", observers=[TensorBoard(folder / "curves")]) as log:
        for event in events:
            log.write(**event)  # type: ignore[arg-type]  # the kind is text


def _step(step: int, loss: float) -> dict[str, object]:
    return {"kind": "step", "phase": 0, "step": step, "loss": loss, "done": True, "name": "x"}


def _validation(step: int, loss: float) -> dict[str, object]:
    return {"kind": "validation", "step": step, "loss": loss}


def test_numbers_of_events_with_a_step_become_curves(tmp_path: Path) -> None:
    start = {"kind": "start", "parameters": 5}
    _session(tmp_path, start, _step(1, 9.0), _validation(1, 0.9), _step(2, 8.0))
    found = _read(tmp_path / "curves")
    assert set(found.Tags()["scalars"]) == {"phase 0 step/loss", "validation/loss"}
    assert [(each.step, each.value) for each in found.Scalars("phase 0 step/loss")] == [(1, 9), (2, 8)]


def test_a_resumed_run_keeps_the_points_of_its_checkpoint_and_replaces_the_later_ones(tmp_path: Path) -> None:
    _session(tmp_path, _step(1, 9.0), _validation(1, 5.0), _step(2, 8.0))
    for loss in (7.0, 6.0):  # both sessions go on from the checkpoint of step 1
        _session(tmp_path, {"kind": "resumed", "step": 1, "format": 3}, _step(2, loss), _step(3, loss))
    found = _read(tmp_path / "curves")
    assert set(found.Tags()["scalars"]) == {"phase 0 step/loss", "validation/loss"}
    steps = [(each.step, each.value) for each in found.Scalars("phase 0 step/loss")]
    assert steps == [(1, 9), (2, 6), (3, 6)]
    assert [(each.step, each.value) for each in found.Scalars("validation/loss")] == [(1, 5)]


def test_a_run_that_begins_again_loses_the_points_that_came_to_nothing(tmp_path: Path) -> None:
    _session(tmp_path, _step(1, 9.0), _step(2, 8.0), _step(4, 8.0))
    _session(tmp_path, {"kind": "restarted", "lost_seconds": 1.0}, _step(3, 7.0))
    found = _read(tmp_path / "curves")
    assert [(each.step, each.value) for each in found.Scalars("phase 0 step/loss")] == [(3, 7)]


def test_a_killed_run_keeps_every_point(tmp_path: Path) -> None:
    curves = TensorBoard(tmp_path)
    for step in range(20):
        curves.write({**_step(step, 1.0), "time": 5.0})  # and nobody closes it
    assert len(_read(tmp_path).Scalars("phase 0 step/loss")) == 20


def test_a_full_disk_costs_the_curves_and_not_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")

    def refuse(file: int, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = threading.active_count()
    monkeypatch.setattr("cotswold.run.loggers.tensorboard.write_all", refuse)
    _session(tmp_path, _step(1, 9.0), _step(2, 9.0))
    kinds = [event["kind"] for event in read_events(tmp_path / "events.jsonl")]
    assert kinds == ["step", "observer_lost", "step"]
    assert threading.active_count() == before, "no thread writes behind the training's back"
    assert capfd.readouterr() == ("", "")
