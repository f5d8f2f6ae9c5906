"""`training.device = "auto"`: the device that a run takes."""

from __future__ import annotations

import pytest

from cotswold import recipe
from cotswold.recipe import Recipe
from cotswold.training import devices

TABLES = {"name": "x", "data": {"type": "dataset"}, "network": {"module": "m"}}


def made(**more: object) -> Recipe:
    training = {"strategy": "supervised", "device": "auto", **more.pop("training", {})}  # type: ignore[dict-item]  # a table
    return recipe.from_values({**TABLES, "training": training, **more}, "here")


@pytest.mark.parametrize(
    ("more", "cuda", "mps", "wanted"),
    [
        ({}, 0, False, "cpu"),
        ({}, 2, True, "cuda"),
        ({}, 0, True, "mps"),
        ({"training": {"strategy": "batch"}}, 2, True, "cpu"),
        ({"training": {"strategy": "downpour"}}, 2, True, "cuda"),
        ({"training": {"strategy": "downpour"}}, 0, True, "cpu"),
        ({"training": {"strategy": "downpour"}, "cluster": {"processes": 2}}, 2, True, "cpu"),
        ({"training": {"device": "cpu"}}, 2, True, "cpu"),
    ],
)
def test_a_run_takes_the_fastest_device_that_its_strategy_can_use(
    more: dict[str, object], cuda: int, mps: bool, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "cuda_device_count", lambda: cuda)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: mps)
    assert devices.with_chosen_device(made(**more)).training.device == wanted
