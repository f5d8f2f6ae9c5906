"""benchmarks/controllers.py: measurements and results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controllers import controllers
from lib.command import main
from lib.controller import exponent, lives


def test_a_controller_of_a_few_servers_is_measured_and_drawn(tmp_path: Path) -> None:
    words = ["--servers", "4", "--servers", "6", "--seconds", "1", "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as left:
        main(controllers, words)
    assert left.value.code == 0
    found = json.loads((tmp_path / "controllers.json").read_text())
    assert found["machine"]["processor"] and (tmp_path / "controllers.svg").stat().st_size > 1000
    assert [row["servers"] for row in found["table"]] == [4, 6]
    assert all(row["beats_a_second"] > 0 and row["create_transactions"] > 0 for row in found["table"])
    assert set(found["exponents"]) == set(found["table"][0]) - {"servers"}


def test_a_death_leaves_every_bucket_whole_in_a_few_transactions() -> None:
    found = lives(5, 0.5)
    death = found["death"]
    assert isinstance(death, dict)
    assert death["copies"] >= 200 and death["leads"] == 100
    assert death["transactions"] <= 3 * (death["copies"] // 60 + 1) + 5, death


def test_the_exponent_of_what_is_linear_is_one() -> None:
    assert exponent([10, 100, 1000], [0.3, 3.0, 30.0]) == pytest.approx(1.0)
    assert exponent([10, 100], [2.0, 200.0]) == pytest.approx(2.0)
