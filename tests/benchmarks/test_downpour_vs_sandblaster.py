"""benchmarks/downpour_vs_sandblaster.py: all ways start at the same parameters; comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.training.small_recipes import draw_labelled, supervised

from cotswold.recipe import dump, load, parse
from cotswold.training import open_store
from downpour_vs_sandblaster import SIMULATED, summary
from lib.downpour.figure_4 import WAYS, Experiment
from lib.downpour.plots import draw_figure_4

LAYERS = '[[network.layers]]\ntype = "linear"\nfeatures = 4'


@pytest.mark.soak
def test_downpour_and_sandblaster_begin_with_the_same_warm_start(tmp_path: Path) -> None:
    draw_labelled(tmp_path / "images", 30)
    text = supervised(tmp_path / "images", layers=LAYERS)
    recipe = parse(text, overrides=["training.strategy=downpour", "training.learning_rate=0.01"])
    store = open_store(recipe, tmp_path / "stores")
    experiment = Experiment(dump(recipe), store, tmp_path / "rows", 64, 1.0)
    adagrad, sandblaster = (
        experiment.cell(WAYS[name], 0.01, 0)
        for name in ("Downpour, Adagrad, 2 replicas", "Sandblaster L-BFGS, 2 workers")
    )
    for split in ("train", "validation"):
        (first, other) = (found["accuracy"][split] for found in (adagrad, sandblaster))  # type: ignore[index]  # a table of JSON
        assert first[0] == other[0] and len(other) > 1
    times = {"step_seconds": 1.0, "travel_seconds": 0.1}
    simulated = experiment.simulated(SIMULATED["Downpour, Adagrad"], 4, 0.01, 0, times, 96)
    assert simulated["accuracy"]["validation"][0] == adagrad["accuracy"]["validation"][0]  # type: ignore[index]  # the same


def test_time_is_to_the_best_accuracy_that_all_have_reached(tmp_path: Path) -> None:
    def cell(held_out: list[float], **more: object) -> dict[str, Any]:
        both = {"held-out": held_out, "train": held_out, "validation": held_out}
        seconds = [float(n) for n in range(len(held_out))]
        return {"seconds": seconds, "cpu_seconds": seconds, "accuracy": both, "rate": 0.1, "seed": 0, **more}

    one, other = list(WAYS)[:2]
    way = next(iter(SIMULATED))
    cells: dict[str, Any] = {
        f"tune; {one}; 0.1": cell([0.9]),
        f"{one}; 0": cell([0.1, 0.5, 0.7]),
        f"{other}; 0": cell([0.1, 0.4, 0.5]),
        f"simulated; {way}; 4; 0.1": cell([0.1, 0.6, 0.2]),
        f"simulated; {way}; 8; 0.1": cell([0.1, 0.2, 0.3]),
    }
    told = summary(cells)
    rows, simulated = told["rows"], told["simulated"]
    assert isinstance(rows, list) and isinstance(simulated, list)
    assert (told["accuracy"], [row["seconds"] for row in rows]) == (0.5, [1.0, 2.0])
    assert [row["seconds"] for row in simulated] == [1.0, None]
    draw_figure_4({"summary": told, "cells": cells}, tmp_path)
    assert (tmp_path / "downpour-vs-sandblaster.svg").stat().st_size > 1000


def test_its_recipe_is_downpour_with_adagrad() -> None:
    training = load("distbelief-downpour-vs-sandblaster").training
    assert (training.strategy, training.update_rule) == ("downpour", "adagrad")  # type: ignore[union-attr]  # so it is
