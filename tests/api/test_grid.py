"""`cotswold.train(grid=)`: processes started by a Python program."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.api.conftest import Desk

import cotswold
from cotswold.errors import RunError, UserError

pytestmark = pytest.mark.slow


def test_a_recipe_trains_over_processes_whose_events_the_program_hears(
    desk: Desk, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    heard: list[Mapping[str, object]] = []
    recipe = cotswold.recipe.load(desk.stacks_recipe)
    run = cotswold.train_recipe(
        recipe, tmp_path / "run", stores=desk.stores, grid="1x2", callbacks=[heard.append]
    )
    assert run.status == "finished"
    assert heard == run.events and heard[0]["grid"] == "1x2"
    assert sorted(path.name for path in (run.path / "logs").iterdir()) == ["rank-0.log", "rank-1.log"]
    assert capfd.readouterr() == ("", "")
    assert len(cotswold.features(run, desk.images)) == 60


@pytest.mark.soak
def test_an_interrupt_of_the_program_saves_and_the_run_goes_on_in_one_process(
    desk: Desk, tmp_path: Path
) -> None:
    def hear(event: Mapping[str, object]) -> None:
        if event["kind"] == "step":
            os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    words = {"training.epochs": 200}
    with pytest.raises(KeyboardInterrupt, match="resume=True"):
        cotswold.train_recipe(
            desk.stacks_recipe,
            tmp_path / "run",
            stores=desk.stores,
            grid="2x1",
            overrides=words,
            callbacks=[hear],
        )
    assert signal.getsignal(signal.SIGINT) is handler
    stop = cotswold.Stop()
    run = cotswold.train_recipe(
        directory=tmp_path / "run",
        resume=True,
        grid="none",
        stop=stop,
        callbacks=[lambda event: setattr(stop, "signal", signal.SIGINT) if event["kind"] == "step" else None],
    )
    assert [event["kind"] for event in run.events].count("resumed") == 1


@pytest.mark.soak
def test_the_programs_error_is_what_rank_0_said(desk: Desk, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="already holds a run; resume it with --resume"):
        cotswold.train_recipe(desk.stacks_recipe, desk.stacks.path, stores=desk.stores, grid="1x2")
    capfd.readouterr()


def test_what_the_program_can_know_is_said_before_processes_start(desk: Desk, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="1000000 processes"):
        cotswold.train_recipe(desk.stacks_recipe, tmp_path / "run", grid="1000x1000")
    with pytest.raises(RunError, match="there is no run in"):
        cotswold.train_recipe(directory=tmp_path / "run", resume=True, grid="1x2")
    errors: list[Exception] = []

    def elsewhere() -> None:
        try:
            cotswold.train_recipe(desk.stacks_recipe, tmp_path / "run", grid="1x2")
        except UserError as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])
    assert list(tmp_path.iterdir()) == []
