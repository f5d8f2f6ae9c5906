"""A run that a release has written: later versions resume, report, verify, evaluate and predict with it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.training.recorded_run import RECORDED, SAMPLES, SOURCE, train_recorded, write_samples
from tests.support.training.runs import bits, events, finish, last, losses, stop_after

import cotswold
from cotswold.analysis import Classification
from cotswold.recipe import FORMAT
from cotswold.run import RunDirectory
from cotswold.training import Resume, open_job

FORMATS = sorted(RECORDED.glob("format-*"))
MORE = "training.epochs=3"
STEPS = 8
"""Steps of the recorded run; an epoch has half as many."""


@pytest.fixture(params=FORMATS, ids=[each.name for each in FORMATS])
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a recorded run, with its samples in the current folder."""
    monkeypatch.chdir(tmp_path)
    write_samples(tmp_path)
    return Path(shutil.copytree(request.param, "run"))


def extended(run: Path) -> RunDirectory:
    return finish(open_job(None, run, overrides=[MORE], stores=Path("stores"), resume=Resume.ALWAYS))


def test_the_current_format_is_recorded() -> None:
    assert f"format-{FORMAT}" in [each.name for each in FORMATS]


def test_a_recorded_run_trains_for_another_epoch(run: Path, tmp_path: Path) -> None:
    before = losses(RunDirectory.open(run))
    found = extended(run)
    (resumed,) = events(found, "resumed")
    assert resumed["step"] == STEPS and last(found.checkpoints).step == STEPS + STEPS // 2
    assert [each["status"] for each in events(found, "end")] == ["finished", "finished"]
    (tmp_path / "own").mkdir()
    own = train_recorded(tmp_path / "own")
    shutil.move(own.path, "own_run")
    # other processors add in another order
    assert before == pytest.approx(losses(RunDirectory.open("own_run")), rel=1e-3)
    assert losses(found) == pytest.approx(losses(extended(Path("own_run"))), rel=1e-3)


def test_an_interrupted_resume_of_a_recorded_run_has_the_bits_of_an_uninterrupted_one(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(run, "copy"))
    stopped = open_job(None, copy, overrides=[MORE], stores=Path("stores"), resume=Resume.ALWAYS)
    assert not stop_after(stopped, STEPS + 2, monkeypatch)
    assert last(copy / "checkpoints").step == STEPS + 2
    assert bits(extended(copy)) == bits(extended(run))


def test_a_recorded_run_is_read_by_every_command(run: Path) -> None:
    assert cotswold.why(run).state == "ended"
    assert cotswold.verify(run, progress=False).findings == ()
    found = cotswold.evaluate(run, stores="stores", progress=False)
    assert isinstance(found, Classification) and found.step == STEPS
    assert found.accuracy == events(RunDirectory.open(run), "validation")[-1]["accuracy"]
    predictions = cotswold.predict(run, SOURCE, progress=False)
    assert predictions.probabilities.shape == (SAMPLES, 2)
    page = cotswold.report(run, progress=False).read_text()
    assert "recorded" in page and "<svg" in page
