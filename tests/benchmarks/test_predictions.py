"""Predictions compared with measurements, on tiny stacks."""

from __future__ import annotations

import pytest
from tests.support.bench.small_cases import tiny_work

from cotswold.bench.machine.description import described
from cotswold.geometry import Grid
from lib.predictions import comparison


@pytest.mark.soak
def test_a_prediction_is_compared_with_its_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    values = described("here", [tiny_work()], cores=2, memory_bytes=10**9, rounds=1)
    monkeypatch.setattr(comparison, "networks", lambda: {"tiny": tiny_work()})
    monkeypatch.setattr(comparison, "described", lambda *_: values)
    monkeypatch.setattr(comparison, "LINKS", (None,))
    monkeypatch.setattr(comparison, "GRIDS", (Grid(1, 2),))
    found = comparison.predictions(2, 10**9)
    rows = found["rows"]
    assert isinstance(rows, list) and [row["grid"] for row in rows] == ["1x1", "1x2"]
    for row in rows:
        errors = [a / b - 1 for a, b in zip(row["predictions"], row["samples"], strict=True)]
        assert min(errors) - 1e-3 <= row["error"] <= max(errors) + 1e-3
        assert len(row["paces"]) == 2 and min(row["paces"]) > 0


def test_a_pace_is_the_machines_whole_speed() -> None:
    rates = [{"operation": "Wx", "rate": 10.0, "crowded": 8.0}, {"operation": "pool", "rate": 2.0}]
    values = {"device": {"bandwidth": 4.0, "peak_gflops": 12.0, "rates": rates}}
    slower = comparison._paced(values, 0.5)
    assert slower["device"]["bandwidth"] == 2.0
    assert slower["device"]["peak_gflops"] == 6.0
    assert slower["device"]["rates"] == [
        {"operation": "Wx", "rate": 5.0, "crowded": 4.0},
        {"operation": "pool", "rate": 1.0},
    ]
    assert values["device"]["bandwidth"] == 4.0
