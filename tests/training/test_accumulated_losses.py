"""Losses that are sums, means or weighted means, over replicas and accumulated batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.training.replica_runs import alone, compare, keeps_weights, trained, weights
from tests.support.training.runs import events


@pytest.mark.parametrize("kind", ["sum", "class weights"])
@pytest.mark.filterwarnings("ignore:the loss is a sum")
def test_losses_that_are_sums_or_weigh_classes_equal_one_process(tmp_path: Path, kind: str) -> None:
    words: dict[str, Any] = {"loss": kind, "learning_rate": 0.01}
    whole, parts = alone(tmp_path / "whole", **words), trained(3, tmp_path / "parts", **words)
    torch.testing.assert_close(weights(whole), weights(parts), rtol=1e-10, atol=1e-10)
    steps = [[each["loss"] for each in events(run, "step")] for run in (whole, parts)]
    assert steps[0] == pytest.approx(steps[1], rel=1e-8)


@pytest.mark.parametrize("kind", ["map", "weights"])
@pytest.mark.parametrize("loss", ["cross_entropy", "sum", "own sum", "class weights"])
@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.filterwarnings("ignore:the loss is a sum")
def test_accumulated_batches_equal_one_batch_in_one_process_and_on_replicas(
    tmp_path: Path, loss: str, kind: str, accumulate: int
) -> None:
    words: dict[str, Any] = {"loss": loss, "kind": kind, "learning_rate": 0.01, "epochs": 2}
    whole = alone(tmp_path / "whole", batch_size=2 * accumulate, **words)
    words |= {"batch_size": 2, "accumulate": accumulate}  # the last batch of 23 samples has one
    parts = alone(tmp_path / "parts", **words)
    replicas = trained(2, tmp_path / "replicas", **words)
    for run in (parts, replicas):
        torch.testing.assert_close(weights(whole), weights(run), rtol=1e-10, atol=1e-10)
        for name in ("step", "validation"):
            if name == "step" or "sum" not in loss:
                seen = [
                    [each.get(key, -1) for key in ("loss", "accuracy") for each in events(one, name)]
                    for one in (whole, run)
                ]
                assert seen[0] == pytest.approx(seen[1], rel=1e-8)


@pytest.mark.parametrize("kind", ["cross_entropy", "sum", "class weights"])
@pytest.mark.filterwarnings("ignore:the loss is a sum")
def test_an_idle_replica_divides_sums_of_batches_as_the_others_do(tmp_path: Path, kind: str) -> None:
    words: dict[str, Any] = {"loss": kind, "accumulate": 2, "learning_rate": 0.05, "batch_size": 2}
    words |= {"kind": "five", "callbacks": keeps_weights}
    parts = trained(2, tmp_path / "parts", **words)
    if kind == "cross_entropy":
        compare(alone(tmp_path / "whole", **words), parts)
    mine, others = torch.load(tmp_path / "parts/0.pt"), torch.load(tmp_path / "parts/1.pt")
    torch.testing.assert_close(mine, others, rtol=0, atol=0)
