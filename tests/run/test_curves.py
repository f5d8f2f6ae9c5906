"""Events as curves in TensorBoard, where it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotswold.run import EventLog, tensorboard


def test_numbers_of_events_with_a_step_become_curves(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for losses in ({1: 9.0, 2: 8.0}, {2: 7.0, 3: 6.0}):  # the second run takes up after step 1
        curves = tensorboard(tmp_path / "curves")
        assert curves is not None
        with EventLog(tmp_path / "events.jsonl", observers=[curves]) as log:
            log.write("start", parameters=5)
            for step, loss in losses.items():
                log.write("step", step=step, stack=0, loss=loss, done=True, name="x")
                log.write("validation", step=step, accuracy=loss / 10)
    found = accumulator.EventAccumulator(str(tmp_path / "curves")).Reload()
    assert set(found.Tags()["scalars"]) == {"stack 0 step/loss", "validation/accuracy"}
    assert [(each.step, each.value) for each in found.Scalars("stack 0 step/loss")] == [
        (1, 9),
        (2, 7),
        (3, 6),
    ]


def test_without_the_extra_there_are_no_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotswold.run.tensorboard_log.find_spec", lambda name: None)
    assert tensorboard(tmp_path) is None
