"""Pushes in recipes of strategy downpour: kinds of update, own steps, rates, filters of norm 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.training.runs import events, finish, last, losses
from tests.training.async_sgd.test_strategy import accounted, job_of

from cotswold.run import RunDirectory


def told(run: RunDirectory, kind: str) -> dict[str, Any]:
    """Return the last event of a kind."""
    found: dict[str, Any] = dict(events(run, kind)[-1])
    return found


def test_factors_give_the_weights_of_gradients_but_for_rounding(tmp_path: Path) -> None:
    runs = []
    for send in ("gradient", "factors"):
        (tmp_path / send).mkdir()
        job = job_of(tmp_path / send, "workers = 1", max_staleness=0, epoch_fraction=1.0, push_format=send)
        runs.append(finish(job))
    ones, others = (last(run.checkpoints).tensors() for run in runs)
    for name, each in ones.items():
        torch.testing.assert_close(each, others[name], rtol=1e-4, atol=1e-5)
    (dense, factored) = (told(run, "phase_end")["pushed_bytes_by_layer"] for run in runs)
    assert all(kinds.keys() == {"gradient"} for kinds in dense.values())
    assert all(kinds.keys() == {"gradient", "factors"} for kinds in factored.values())  # biases as they are


def test_rates_follow_samples_and_what_is_pushed_is_told_by_layer(tmp_path: Path) -> None:
    run = finish(job_of(tmp_path, schedule="linear", gradient_layers=[1], factor_layers=[3]))
    end = told(run, "phase_end")
    assert end["pushed_bytes_by_layer"].keys() == {"layer 1", "layer 3"}
    assert end["pushed_bytes_by_layer"]["layer 1"].keys() == {"gradient"}
    assert end["pushed_bytes_by_layer"]["layer 3"].keys() == {"gradient", "factors"}
    assert end["pushed_bytes"] == sum(sum(kinds.values()) for kinds in end["pushed_bytes_by_layer"].values())
    assert 0 < told(run, "step")["learning_rate"] < 0.2 * 0.1, "the run is nearly over"


@pytest.mark.parametrize(
    "settings",
    [
        {"update_rule": "deltas", "push_every": 3, "pull_every": 2},
        {"pull_every": 3, "push_every": 2},
        {"unit_norm": True, "update_rule": "adagrad", "pull_every": 2, "learning_rate": 0.05},
    ],
    ids=str,
)
def test_a_recipe_learns_by_each_way_of_stepping(settings: dict[str, Any], tmp_path: Path) -> None:
    run = finish(job_of(tmp_path, **settings))
    accounted(run, 4)
    found = losses(run)
    assert found[-1] < 0.8 * found[0]
    end = told(run, "phase_end")
    kinds = {kind for each in end["pushed_bytes_by_layer"].values() for kind in each}
    assert ("delta" in kinds) == (settings.get("update_rule") == "deltas")
    if "unit_norm" in settings:
        rows = last(run.checkpoints).tensors()["network.layers.1.weight"].norm(dim=1)
        torch.testing.assert_close(rows, torch.ones_like(rows), rtol=1e-5, atol=0)
