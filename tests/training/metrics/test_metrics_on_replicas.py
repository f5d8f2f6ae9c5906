"""Metrics of replicas, which each validate a part of the samples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.training.replica_runs import alone, trained
from tests.support.training.runs import events
from torch import Tensor

from cotswold.errors import UserError
from cotswold.training.losses import cross_entropy
from cotswold.training.metrics.exchange import from_json, to_json
from cotswold.training.metrics.metric_set import MetricSet

torchmetrics = pytest.importorskip("torchmetrics")


class Seen:
    """Counts samples, and the batches of the process that has most."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.samples, self.batches = torch.zeros(()), torch.zeros(())

    def update(self, output: Tensor, target: Tensor) -> None:
        self.samples, self.batches = self.samples + len(target), self.batches + 1

    def compute(self) -> dict[str, Tensor]:
        return {"seen": self.samples, "batches": self.batches}

    def state(self) -> Mapping[str, Tensor]:
        return {"samples": self.samples, "batches": self.batches}

    def merge(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        self.samples = torch.stack([each["samples"] for each in states]).sum()
        self.batches = torch.stack([each["batches"] for each in states]).max()


class Whole(Seen):
    """Counts without an exchange of states."""

    state = None  # type: ignore[assignment]  # as an object without the method
    merge = None  # type: ignore[assignment]  # a metric without merge


class Count(torchmetrics.Metric):  # type: ignore[misc, name-defined]  # an optional dependency
    """Counts samples as torchmetrics does."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("samples", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, output: Tensor, target: Tensor) -> None:
        self.samples += len(target)

    def compute(self) -> Tensor:
        found: Tensor = self.samples
        return found


def _measured(exchanged: bool) -> list[Any]:
    return [
        "auroc",
        "macro_f1",
        "top2",
        Seen() if exchanged else Whole(),
        torchmetrics.AUROC("multiclass", num_classes=4),
        Count(),
    ]


@pytest.mark.parametrize(("replicas", "grid"), [(2, "1x1"), (3, "1x1"), (2, "1x2")])
def test_replicas_validate_each_sample_once_and_merge_the_metrics(
    tmp_path: Path, replicas: int, grid: str
) -> None:
    words: dict[str, Any] = {"measured": partial(_measured, True), "epochs": 1}
    whole = alone(tmp_path / "whole", **words)
    parts = trained(replicas, tmp_path / "parts", grid, **words)
    for one, other in zip(*(events(run, "validation") for run in (whole, parts)), strict=True):
        assert (one["seen"], one["Count"], one["batches"], other["batches"]) == (7, 7, 2, 1)
        for name in ("auroc", "macro_f1", "top2", "MulticlassAUROC", "seen", "Count", "loss", "accuracy"):
            assert one[name] == pytest.approx(other[name], rel=1e-6), name


def test_replicas_with_a_metric_without_states_validate_all_samples(tmp_path: Path) -> None:
    words: dict[str, Any] = {"measured": partial(_measured, False), "epochs": 1}
    whole, parts = alone(tmp_path / "whole", **words), trained(2, tmp_path / "parts", **words)
    for one, other in zip(*(events(run, "validation") for run in (whole, parts)), strict=True):
        names = ("auroc", "seen", "batches", "Count", "loss", "accuracy")
        assert {name: one[name] for name in names} == pytest.approx({name: other[name] for name in names})
        assert (other["seen"], other["batches"], other["Count"]) == (7, 2, 7)


def test_states_travel_as_json_and_other_objects_are_refused() -> None:
    state = {
        "a": (torch.tensor([1.5, 2.5]).half(), 3),
        "b": [torch.empty(0, 2), torch.tensor(True)],
        "c": "x",
    }
    found = from_json(json.loads(json.dumps(to_json(state))))
    assert torch.equal(found["a"][0], torch.tensor([1.5, 2.5]).half()) and found["a"][1] == 3
    assert found["b"][0].shape == (0, 2) and bool(found["b"][1]) and found["c"] == "x"
    with pytest.raises(UserError, match="the state of a metric contains a set; return tensors"):
        to_json({"a": {1}})


def test_metrics_of_torchmetrics_that_do_not_add_up_are_not_merged() -> None:
    def can_merge(metric: object) -> bool:
        return MetricSet([metric], cross_entropy).can_merge

    assert can_merge(Count()) and can_merge("auroc")
    assert not can_merge(torchmetrics.PearsonCorrCoef())
    assert not can_merge(torchmetrics.MetricCollection([Count()]))
    assert not can_merge(torchmetrics.MinMaxMetric(Count()))
