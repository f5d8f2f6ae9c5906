"""This machine as a cluster, and predictions beside measurements, on stacks of next to no work."""

from __future__ import annotations

import pytest

from cotswold.bench import foretold, machine
from cotswold.geometry import BlockLocal, Grid, MapShape, Smoothing, StackGeometry, Window
from cotswold.simulate import Cluster, StackWork


def tiny() -> StackWork:
    window, smoothing = Window(6, 2), Smoothing(3)
    first = StackGeometry(BlockLocal(MapShape(3, 20, 20), window, window, 2, 2, 4), smoothing, smoothing)
    second = StackGeometry(BlockLocal(first.output, Window(3), Window(3), 2, 2, 4), smoothing, Smoothing(1))
    return StackWork((first, second), 8, "joint")


@pytest.fixture(scope="module")
def values() -> machine.Values:
    return machine.described("here", [tiny()], cores=2, memory_bytes=10**9, rounds=1)


@pytest.mark.slow
def test_a_measured_machine_is_a_cluster_with_rates_of_every_operation(values: machine.Values) -> None:
    described = Cluster.model_validate(values)
    assert (described.hosts, described.devices) == (1, 2)
    found = {(rate.operation, rate.fan_in) for rate in described.device.rates}
    operations = {"Wx", "W'x", "δx'", "pool", "pool'", "residual", "maps", "pack"}
    assert {(name, fan_in) for name in operations for fan_in in (108, 36)} <= found
    assert ("norm", 108) in found and ("norm", 36) not in found
    assert described.inside is not None and described.inside.gbits > 0


@pytest.mark.slow
def test_a_prediction_stands_beside_its_measurement(
    values: machine.Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foretold, "networks", lambda: {"tiny": tiny()})
    monkeypatch.setattr(foretold, "described", lambda *_: values)
    monkeypatch.setattr(foretold, "LINKS", (None,))
    monkeypatch.setattr(foretold, "GRIDS", (Grid(1, 2),))
    found = foretold.foretold(2, 10**9)
    rows = found["rows"]
    assert isinstance(rows, list) and [row["grid"] for row in rows] == ["1x1", "1x2"]
    for row in rows:
        errors = [a / b - 1 for a, b in zip(row["predictions"], row["samples"], strict=True)]
        assert min(errors) - 1e-3 <= row["error"] <= max(errors) + 1e-3
        assert len(row["paces"]) == 2 and min(row["paces"]) > 0


def test_a_pace_is_the_machines_whole_speed() -> None:
    rates = [{"operation": "Wx", "rate": 10.0, "crowded": 8.0}, {"operation": "pool", "rate": 2.0}]
    values = {"device": {"bandwidth": 4.0, "peak_gflops": 12.0, "rates": rates}}
    slower = foretold._paced(values, 0.5)
    assert slower["device"]["bandwidth"] == 2.0
    assert slower["device"]["peak_gflops"] == 6.0
    assert slower["device"]["rates"] == [
        {"operation": "Wx", "rate": 5.0, "crowded": 4.0},
        {"operation": "pool", "rate": 1.0},
    ]
    assert values["device"]["bandwidth"] == 4.0
