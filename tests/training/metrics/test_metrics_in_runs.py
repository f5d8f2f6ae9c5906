"""Metrics on the validation samples of runs: the same values in every strategy."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.training.batch_runs import events, trained
from tests.support.training.runs import finish
from tests.support.training.small_recipes import supervised
from tests.training.test_mesh_runs import trained as on_grid
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

import cotswold
from cotswold.analysis import Classification, Regression
from cotswold.errors import RecipeError, UserError
from cotswold.recipe.schema import (
    BatchTraining,
    Cluster,
    DownpourTraining,
    GreedyTraining,
    SupervisedTraining,
)
from cotswold.training import open_job, open_module_job
from cotswold.training.components import Components
from cotswold.training.jobs.check_outputs import check_metric_objects

NAMES = ["accuracy", "top2", "macro_f1", "auroc"]
STRATEGIES: dict[str, tuple[Any, Cluster | None]] = {
    "supervised": (SupervisedTraining(epochs=2, batch_size=16, metrics=NAMES), None),
    "batch": (BatchTraining(max_iterations=2, metrics=NAMES), None),
    "batch of workers": (
        BatchTraining(max_iterations=2, metrics=NAMES, portion_size=16),
        Cluster(workers=2),
    ),
    "downpour": (DownpourTraining(epochs=1, batch_size=16, metrics=NAMES), Cluster(workers=2)),
}


def labelled() -> TensorDataset:
    x = torch.randn(90, 5, generator=torch.Generator().manual_seed(2))
    return TensorDataset(x, x[:, :3].argmax(1))


def error_rate(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(1) != target).float().mean()


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_records_the_metrics_of_the_validated_network(name: str, tmp_path: Path) -> None:
    training, cluster = STRATEGIES[name]
    module, held = nn.Linear(5, 3), TensorDataset(*labelled()[60:])
    job = open_module_job(
        module,
        TensorDataset(*labelled()[:60]),
        loss="cross_entropy",
        directory=tmp_path / "run",
        settings=training,
        cluster=cluster,
        validation=held,
        components=Components(metrics=(error_rate,)),
    )
    finish(job)
    last = events(tmp_path / "run", "validation")[-1]
    inputs, targets = held.tensors
    with torch.no_grad():
        outputs = module(inputs)
    wanted = float((outputs.argmax(1) == targets).float().mean())
    top = float((outputs.topk(2).indices == targets[:, None]).any(1).float().mean())
    assert {each: last[each] for each in ("accuracy", "top2", "error_rate")} == {
        "accuracy": pytest.approx(wanted),
        "top2": pytest.approx(top),
        "error_rate": pytest.approx(1 - wanted),
    }
    assert {"macro_f1", "auroc"} <= set(last)


class Weighted(Dataset[Any]):
    """Samples of which the first half has no weight."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.ones(2), torch.tensor(index // 4), torch.tensor(float(index // 4))


def test_weights_of_samples_weight_the_accuracy(tmp_path: Path) -> None:
    module = nn.Linear(2, 2)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[0.0, 0.0], [9.0, 9.0]]))
    settings = SupervisedTraining(epochs=1, batch_size=8, learning_rate=1e-6, metrics=["top1"])
    job = open_module_job(
        module, Weighted(), loss="cross_entropy", directory=tmp_path / "run", settings=settings,
        validation=Weighted(),
    )  # fmt: skip
    finish(job)
    last, step = events(tmp_path / "run", "validation")[-1], events(tmp_path / "run", "step")[-1]
    assert (last["accuracy"], last["top1"], step["accuracy"]) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_metric_that_does_not_fit_ends_the_run_with_its_name(name: str, tmp_path: Path) -> None:
    training, cluster = STRATEGIES[name]
    job = open_module_job(
        nn.Linear(5, 3),
        labelled(),
        loss="cross_entropy",
        directory=tmp_path / "run",
        settings=training.model_copy(update={"metrics": ["mae"]}),
        cluster=cluster,
        validation=0.3,
    )
    with pytest.raises(UserError, match=r"the metric mae cannot be measured: mae needs targets of the outp"):
        finish(job)


def test_metrics_are_checked_before_there_is_a_run(tmp_path: Path) -> None:
    def opened(metrics: list[str], **words: Any) -> None:
        settings = SupervisedTraining(metrics=metrics)
        open_module_job(
            nn.Linear(5, 3),
            labelled(),
            loss="cross_entropy",
            directory=tmp_path / "run",
            settings=settings,
            **words,
        )

    with pytest.raises(RecipeError, match="unknown metric 'f1_macro'; did you mean macro_f1"):
        opened(["f1_macro"], validation=0.3)
    with pytest.raises(UserError, match="metrics are measured on validation samples, but there is no valid"):
        opened(["top2"])
    assert not (tmp_path / "run").exists()


def test_a_recipe_names_metrics_and_its_run_is_evaluated_by_them(
    blobs: Path, stores: Path, tmp_path: Path
) -> None:
    place = tmp_path / "run"
    trained(blobs, place, stores, 'training.metrics=["top2","macro_f1"]', "data.test=0.2")
    assert {"accuracy", "top2", "macro_f1"} <= set(events(place, "validation")[-1])
    found = cotswold.evaluate(place, stores=stores)
    assert isinstance(found, Classification) and found.split == "test"
    assert list(found.metrics) == ["accuracy", "top2", "macro_f1"]
    assert found.metrics["accuracy"] == found.accuracy
    assert Classification.read(place / "classification.json") == found
    other = cotswold.evaluate(place, stores=stores, metrics=["auroc", error_rate], split="validation")
    assert other.metrics["error_rate"] == pytest.approx(1 - other.metrics["accuracy"])  # type: ignore[operator]  # both are numbers
    assert list(other.metrics) == ["accuracy", "auroc", "error_rate"]
    with pytest.raises(RecipeError, match=r"unknown metric 'auc'"):
        cotswold.evaluate(place, stores=stores, metrics=["auc"])
    with pytest.raises(UserError, match=r"must be a list, got a text; give metrics=\['auroc'\]"):
        cotswold.evaluate(place, stores=stores, metrics="auroc")
    with pytest.raises(UserError, match=r"omit positives, or use cotswold\.evaluate\(run\)"):
        cotswold.selectivity(place, positives="here")


def test_objects_that_a_run_of_a_recipe_would_not_measure_are_refused(
    blobs: Path, stores: Path, tmp_path: Path
) -> None:
    job = open_job(blobs, tmp_path / "run", overrides=["data.validation=0.0"], stores=stores)
    with pytest.raises(UserError, match=r"metrics are measured on validation samples, but .* has none"):
        finish(replace(job, components=Components(metrics=(error_rate,))))
    with pytest.raises(UserError, match="strategy greedy trains without labels"):
        check_metric_objects((error_rate,), GreedyTraining(), job.store)


@pytest.mark.slow
def test_replicas_of_a_recipe_are_evaluated_by_objects_of_the_program(
    blobs: Path, stores: Path, tmp_path: Path
) -> None:
    text = blobs.read_text().split("training =")[0]
    text += 'training = { strategy = "downpour", epochs = 1, metrics = ["top2"] }\n'
    recipe = tmp_path / "downpour.toml"
    recipe.write_text(text)
    job = open_job(recipe, tmp_path / "run", stores=stores)
    finish(replace(job, components=Components(metrics=(error_rate,))))
    last = events(tmp_path / "run", "validation")[-1]
    assert last["error_rate"] == pytest.approx(1 - float(str(last["accuracy"])))
    assert 0 <= float(str(last["top2"])) <= 1


def test_errors_of_a_regression_are_in_the_unit_of_the_targets(stores: Path, tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=(200, 4)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x, y=(1000 + 100 * x[:, :1]).astype(np.float32))
    recipe = tmp_path / "rows.toml"
    recipe.write_text(
        f"""
name = "rows"
data = {{ type = "vectors", source = "{tmp_path / "rows.npz"}", labels = "file", validation = 0.2 }}
network = {{ layers = [] }}
objective = {{ loss = "squared_error" }}
training = {{ strategy = "supervised", epochs = 1, learning_rate = 1e-6, metrics = ["mae", "rmse", "r2"] }}
"""
    )
    finish(open_job(recipe, tmp_path / "run", stores=stores))
    last = events(tmp_path / "run", "validation")[-1]
    found = cotswold.evaluate(tmp_path / "run", stores=stores, split="validation")
    assert isinstance(found, Regression)
    assert {name: last[name] for name in ("mae", "rmse", "r2")} == pytest.approx(
        {name: found.metrics[name] for name in ("mae", "rmse", "r2")}, rel=1e-5
    )
    assert found.metrics["rmse"] == pytest.approx(found.rmse[0], rel=1e-6)
    assert 20 < float(str(last["mae"])) < 500, "standardised errors are about 1"
    assert found.metrics["loss"] == found.loss and not math.isnan(found.loss)


def test_a_loss_that_ignores_a_class_has_no_metric_of_it(tmp_path: Path) -> None:
    x, y = labelled().tensors
    targets = torch.where(torch.arange(90) % 2 == 0, torch.tensor(-1), y)
    settings = SupervisedTraining(epochs=1, batch_size=10, metrics=["top1", "accuracy"])

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target, ignore_index=-1)

    job = open_module_job(
        nn.Linear(5, 3), TensorDataset(x, targets), loss=loss, directory=tmp_path / "run",
        settings=settings, validation=0.4,
    )  # fmt: skip
    finish(job)
    last = events(tmp_path / "run", "validation")[-1]
    assert last["top1"] == last["accuracy"]


@pytest.mark.slow
def test_every_rank_of_a_grid_measures_whole_outputs(images: Path, stores: Path, tmp_path: Path) -> None:
    text = supervised(images).replace("batch_size = 8", 'batch_size = 8\nmetrics = ["top1", "auroc"]')
    recipe = tmp_path / "small.toml"
    recipe.write_text(text)
    finish(open_job(recipe, tmp_path / "alone", stores=stores))
    on_grid("1x2", recipe, tmp_path / "grid", stores)
    for one, other in zip(
        events(tmp_path / "alone", "validation"), events(tmp_path / "grid", "validation"), strict=True
    ):
        assert other["top1"] == other["accuracy"]
        assert other["auroc"] == pytest.approx(one["auroc"], abs=0.05)
