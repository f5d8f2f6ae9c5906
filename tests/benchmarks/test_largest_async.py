"""benchmarks/largest_async.py: size of a network, bytes of its pushes, and its measurements."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import largest_async as script
from largest_async import FIRST, ROOM, SUPPOSED_BYTES, next_units, summary
from lib.downpour.largest import FORMS, measured, tree_bytes, units_for


def test_units_fill_the_room() -> None:
    units = units_for(1e9, 50.0)
    assert units % 16 == 0 and 50 * units**2 <= 1e9 < 50 * (units + 16) ** 2
    assert units_for(-1.0, 50.0) == 16


def tried(units: int, peak: float, is_stopped: bool = False) -> dict[str, object]:
    return {"units": units, "parameters": units**2, "peak_bytes": peak, "is_stopped": is_stopped}


def test_each_network_is_as_large_as_the_one_before_allows() -> None:
    limit, least = 1e9, tried(16, 1e8)
    first = next_units(limit, least, [])
    assert SUPPOSED_BYTES * first**2 <= FIRST * limit
    cells = [tried(first, 1e8 + 50 * first**2)]
    second = next_units(limit, least, cells)
    assert second > 1.1 * first and 1e8 + 50 * second**2 == pytest.approx(ROOM * limit, rel=0.02)
    cells.append(tried(second, 1e8 + 49 * second**2))
    assert next_units(limit, least, cells) == 0
    cells[1] = tried(second, 0.96 * limit, is_stopped=True)
    third = next_units(limit, least, cells)
    assert first < third < second
    cells.append(tried(third, 0.9 * limit))
    assert next_units(limit, least, cells) == 0


@pytest.mark.soak
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


@pytest.mark.soak
def test_a_network_that_takes_more_than_it_may_is_stopped() -> None:
    found: Any = measured("factors", 512, 32, 10**6, most_bytes=1.0)
    assert found["is_stopped"] and found["peak_bytes"] > 1 and "step_seconds" not in found


@pytest.mark.soak
def test_the_bound_is_kept(tmp_path: Path) -> None:
    words = ["--gigabytes", "1", "--steps", "2", "--sends", "deltas", "--sends", "factors"]
    command = [sys.executable, str(Path(str(script.__file__))), *words, "--out", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    found: Any = json.loads((tmp_path / "largest-async.json").read_text())
    assert len(found["summary"]["rows"]) == 2
    assert all(cell["peak_bytes"] <= 1e9 for cell in found["cells"].values())
    for row in found["summary"]["rows"]:
        assert row["parameters"] > 10**6 and not row["is_stopped"]


def test_the_largest_is_named() -> None:
    cells: dict[str, Any] = {}
    for form, weights in (("gradient", 10**8), ("factors", 2 * 10**8)):
        own = {"sends": form, "parameters": weights, "peak_bytes": 10**10, "step_seconds": 1.0}
        pushed = 4.0 if form == "gradient" else 0.04
        whole = {**own, "pushed_bytes_a_weight": pushed, "is_stopped": False}
        cells[f"least; {form}"] = {**whole, "parameters": 100, "peak_bytes": 10**9}
        cells[f"network; {form}; 0"] = {**whole, "parameters": 10**6, "peak_bytes": 10**8}
        cells[f"network; {form}; 1"] = whole
        cells[f"network; {form}; 2"] = {**own, "parameters": 10**9, "is_stopped": True}
    told: Any = summary(cells)
    assert "200 million weights" in told["said"] and "sent as factors" in told["said"]
    assert "100 times the bytes" in told["note"] and told["bytes_a_weight"] == {"gradient": 90, "factors": 45}
