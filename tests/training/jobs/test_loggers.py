"""Loggers of runs: they receive events, may fail, and may change when a run is resumed."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.training.batch_runs import events
from tests.support.training.runs import finish
from torch import nn
from torch.utils.data import TensorDataset

from cotswold.errors import RecipeError, UserError
from cotswold.recipe.schema import SupervisedTraining
from cotswold.run import RunDirectory
from cotswold.training import Resume, open_module_job
from cotswold.training.components import Components


class Raising:
    """A logger that fails at the second step."""

    name = "raising"

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.is_closed = False

    def write(self, event: Mapping[str, object]) -> None:
        self.kinds.append(str(event["kind"]))
        if event.get("step") == 2:
            raise ValueError("full")

    def close(self) -> None:
        self.is_closed = True


def run(place: Path, names: Sequence[str], epochs: int = 2, *loggers: Any, resume: bool = False) -> Path:
    x = torch.arange(40.0).reshape(20, 2) / 40
    torch.manual_seed(1)
    job = open_module_job(
        nn.Linear(2, 2),
        TensorDataset(x, torch.arange(20) % 2),
        loss="cross_entropy",
        directory=place,
        settings=SupervisedTraining(epochs=epochs, batch_size=4, loggers=[*names]),
        resume=Resume.ALWAYS if resume else Resume.NEVER,
        components=Components(loggers=loggers),
    )
    finish(job)
    return place


def test_a_logger_that_fails_is_left_out_and_the_run_goes_on(tmp_path: Path) -> None:
    logger = Raising()
    place = run(tmp_path / "run", [], 2, logger)
    (lost,) = events(place, "observer_lost")
    assert (lost["observer"], lost["error"]) == ("raising", "ValueError: full")
    assert logger.kinds[0] == "start" and logger.is_closed
    assert events(place, "end")[-1]["status"] == "finished"
    assert not RunDirectory.open(place).tensorboard.exists(), "an empty list is none"


def test_loggers_may_change_when_a_run_is_resumed(tmp_path: Path) -> None:
    place = run(tmp_path / "run", ["csv"])
    run(place, ["csv", "tensorboard"], 4, resume=True)
    with (place / "metrics.csv").open(newline="") as file:
        steps = [row["step"] for row in csv.DictReader(file) if row["kind"] == "step"]
    assert steps == [str(step) for step in range(1, 21)]
    assert RunDirectory.open(place).tensorboard.is_dir()


def test_a_logger_that_does_not_exist_is_refused_before_there_is_a_run(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="unknown logger 'cvs'; did you mean 'csv'"):
        run(tmp_path / "run", ["cvs"])
    with pytest.raises(UserError, match="is not a logger"):
        run(tmp_path / "run", [], 2, print)
    assert not (tmp_path / "run").exists()
