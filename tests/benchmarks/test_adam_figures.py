"""benchmarks/adam_figures.py: measurements, and their extrapolation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.training.small_recipes import draw_labelled, supervised

from adam_figures import summary
from cotswold.recipe import parse
from cotswold.training import open_store
from lib.downpour.plots import draw_adam_figures
from lib.downpour.scaling import ScalingCase, simulated_speed

LAYERS = '[[network.layers]]\ntype = "linear"\nfeatures = 4'


@pytest.mark.soak
def test_processes_on_one_copy_and_replicas_are_measured(tmp_path: Path) -> None:
    draw_labelled(tmp_path / "images", 12)
    text = supervised(tmp_path / "images", layers=LAYERS)
    recipe = parse(text, overrides=["training.strategy=downpour", "training.epochs=1000000"])
    growing = ScalingCase(recipe, open_store(recipe, tmp_path / "stores"), tmp_path / "rows", 0.2)
    shared: Any = growing.on_one_copy(1)
    assert shared["connections"] == 16 * 16 * 3 * 4 + 4 * 2
    expected = shared["connections"] * shared["samples_a_second"] / 1e9
    assert shared["billion_connections_a_second"] == pytest.approx(expected, rel=1e-3)
    replicas: Any = growing.replicas(1)
    assert replicas["samples_a_second"] > 0 and replicas["steps"] > 0
    assert replicas["push_bytes"] > 4 * 16 * 16 * 3 * 4


def test_replicas_are_as_fast_as_they_are_many_until_the_server_is_busy() -> None:
    one, four, many = (simulated_speed(count, 100, 0.02, 0.002) for count in (1, 4, 64))
    assert one == pytest.approx(100 / 0.02, rel=0.1)
    assert four == pytest.approx(4 * one, rel=0.1)
    assert many == pytest.approx(100 / 0.002, rel=0.05)


def test_what_is_beyond_is_called_so(tmp_path: Path) -> None:
    step = {"replicas, all threads": 20.0, "servers": 2.0, "coordinator": 0.5}
    more = {"batch": 100, "push_bytes": 2_000_000, "cores": 2, "step_ms": step}
    cells: dict[str, Any] = {
        "figure 8; 1; 0": {"billion_connections_a_second": 8.0},
        "figure 8; 2; 0": {"billion_connections_a_second": 15.0},
        "figure 11; 1; 0": {"samples_a_second": 4900.0, **more},
        "figure 11; 2; 0": {"samples_a_second": 8500.0, **more},
    }
    told: Any = summary(cells)
    cores = {row["cores"]: (row["billion_connections_a_second"], row["is"]) for row in told["figure 8"]}
    assert cores[2] == (15.0, "measured") and cores[8] == (60.0, "as many times as cores")
    two = next(row for row in told["figure 11"] if row["replicas"] == 2)
    assert two["measured"] == 8500.0
    assert two["predicted_here"] == pytest.approx(2 * 100 / 0.0225, rel=1e-3)
    last = told["figure 11"][-1]
    assert last["measured"] is None and last["simulated_10_gigabit"] < last["simulated"]
    draw_adam_figures(told, tmp_path)
    assert (tmp_path / "adam-figures.svg").stat().st_size > 1000
