"""benchmarks/largest_async.py: how large a network is, what is pushed of it, and what it took."""

from __future__ import annotations

from typing import Any

import pytest

from largest_async import TRIALS, summary, taken
from measures.downpour.largest import FORMS, measured, tree_bytes, units_for


def test_units_fill_the_room() -> None:
    units = units_for(1e9, 50.0)
    assert units % 16 == 0 and 50 * units**2 <= 1e9 < 50 * (units + 16) ** 2
    assert units_for(-1.0, 50.0) == 16


def test_bytes_of_a_weight_are_the_slope() -> None:
    small, large = (dict[str, object](parameters=n, peak_bytes=700 + 50 * n) for n in (10, 100))
    assert taken(small, large) == (700, 50)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_some_steps_are_measured(form: str) -> None:
    found: Any = measured(form, 512, 32, 2)
    weights = 64 * 512 + 512 * 512 + 512 * 10 + 512 + 512 + 10
    assert found["parameters"] == weights and found["step_seconds"] > 0 and found["servers"] == 1
    assert found["pulled_bytes_a_step"] == pytest.approx(4 * weights, rel=1e-3)
    if form == "factors":
        assert found["pushed_bytes_a_step"] < 0.6 * 4 * weights
    else:
        assert found["pushed_bytes_a_step"] == pytest.approx(4 * weights, rel=1e-3)
    assert found["peak_bytes"] > tree_bytes() / 2


def test_the_largest_is_named() -> None:
    cells: dict[str, Any] = {}
    for form, weights in (("gradient", 10**8), ("factors", 2 * 10**8)):
        own = {"sends": form, "parameters": weights, "peak_bytes": 10**10, "step_seconds": 1.0}
        pushed = 4.0 if form == "gradient" else 0.04
        cells[f"largest; {form}"] = {**own, "pushed_bytes_a_weight": pushed}
        for place, part in enumerate(TRIALS, 1):
            cells[f"trial; {form}; {part:.3f}"] = {"parameters": place * 1000, "peak_bytes": place * 60_000}
    told: Any = summary(cells)
    assert "0.20 billion weights" in told["said"] and "sent as factors" in told["said"]
    assert "100 times the bytes" in told["note"] and told["bytes_a_weight"] == {"gradient": 60, "factors": 60}
