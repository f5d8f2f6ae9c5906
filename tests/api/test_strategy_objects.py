"""Strategy objects and optimisers that a program gives to `cotswold.train`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.api.digits import halves, network

import cotswold
from cotswold.api.modules.request import sections_of
from cotswold.errors import RunError, UserError
from cotswold.recipe.schema import (
    BatchTraining,
    Cluster,
    DownpourTraining,
    Mesh,
    SupervisedTraining,
    WorkerMesh,
)
from cotswold.recipe.strategies import StrategyObject


def test_a_run_with_an_optimiser_of_the_program_asks_for_it_again(tmp_path: Path) -> None:
    words: dict[str, Any] = {"directory": tmp_path / "run", "batch_size": 8}
    own = partial(torch.optim.AdamW, lr=0.01)
    run = cotswold.train(network(), halves(), loss="cross_entropy", epochs=1, optimizer=own, **words)
    assert 'optimizer = "custom"' in (tmp_path / "run/recipe.toml").read_text()
    with pytest.raises(UserError, match=r"which no file of a run contains; give it in Python \(the same"):
        cotswold.train(network(), halves(), resume=True, epochs=2, **words)
    assert len(run.events) == len(cotswold.Run(run.path).events)
    again = cotswold.train(network(), halves(), resume=True, epochs=2, optimizer=own, **words)
    assert again.status == "finished" and again.recipe.training.optimizer == "custom"  # type: ignore[union-attr]  # supervised alone has one
    with pytest.raises(UserError, match="no file of a run contains"):
        cotswold.train(network(), halves(), loss="cross_entropy", optimizer="custom")


def test_a_strategy_object_gives_only_the_fields_that_the_program_set() -> None:
    words = cotswold.Supervised(epochs=1)
    assert words.given_fields() == {"training": {"epochs": 1}, "mesh": {}}
    assert sections_of(words, {"learning_rate": 0.1})[0].learning_rate == 0.1  # type: ignore[union-attr]  # a supervised section has one
    assert sections_of(words, {"optimizer": "adamw"})[0].learning_rate == 0.001  # type: ignore[union-attr]  # as above


def test_a_resumed_run_keeps_its_fields_and_names_another_optimizer(tmp_path: Path) -> None:
    words: dict[str, Any] = {"directory": tmp_path / "run", "loss": "cross_entropy", "batch_size": 8}
    cotswold.train(network(), halves(), learning_rate=0.1, epochs=1, **words)
    with pytest.raises(RunError, match=r"training.optimizer \(sgd there, adamw here\)"):
        cotswold.train(network(), halves(), resume=True, optimizer="adamw", **words)
    object_of = cotswold.Supervised(epochs=2)
    run = cotswold.train(network(), halves(), resume=True, strategy=object_of, **words)
    assert run.status == "finished"


def test_a_strategy_object_has_the_fields_of_its_tables() -> None:
    kinds: dict[type[StrategyObject], set[str]] = {
        cotswold.Supervised: {*SupervisedTraining.model_fields, *Mesh.model_fields},
        cotswold.FullBatch: {*BatchTraining.model_fields, *Cluster.model_fields, *WorkerMesh.model_fields},
        cotswold.Downpour: {*DownpourTraining.model_fields, *Cluster.model_fields, *WorkerMesh.model_fields},
    }
    for kind, names in kinds.items():
        assert set(kind.model_fields) == names
        tables = {name: kind.table_of(name) for name in names}
        assert tables["epochs" if "epochs" in names else "method"] == "training" and tables["grid"] == "mesh"
        assert tables.get("workers", "cluster") == "cluster" and tables.get("replicas", "mesh") == "mesh"
    given = cotswold.Downpour(update_rule="adagrad", workers=3, grid="1x2").given_fields()
    assert given == {
        "training": {"update_rule": "adagrad"},
        "cluster": {"workers": 3},
        "mesh": {"grid": "1x2"},
    }


def test_the_settings_of_a_strategy_object_reach_the_run_and_need_not_be_repeated(tmp_path: Path) -> None:
    strategy = cotswold.Downpour(workers=2, epochs=1, update_rule="adagrad", learning_rate=0.05)
    run = cotswold.train(
        network(), halves(), loss="cross_entropy", directory=tmp_path / "run", strategy=strategy
    )
    assert isinstance(run.recipe.training, DownpourTraining)
    assert run.recipe.training.update_rule == "adagrad" and run.recipe.cluster.workers == 2
    again = cotswold.train(network(), halves(), directory=run, resume=True)
    assert again.recipe == run.recipe
