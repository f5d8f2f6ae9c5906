"""benchmarks/in_flight.py: measurements and results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cotswold.testing.hosts import why_not
from in_flight import in_flight
from lib.command import main


@pytest.mark.soak
@pytest.mark.skipif(why_not() is not None, reason="needs root and ip/tc (Debian's iproute2)")
def test_ranks_are_less_idle_with_more_micro_batches_under_way(tmp_path: Path) -> None:
    words = ["--rate", "50mbit", "--images", "64", "--rounds", "3", "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as left:
        main(in_flight, words)
    assert left.value.code == 0
    found = json.loads((tmp_path / "in_flight.json").read_text())
    assert set(found["images_a_second"]) == {"1", "2", "4"}
    assert found["idle"]["4"] < found["idle"]["1"]


def test_what_measures_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(in_flight, ["--images", "0"])
    assert left.value.code == 2
    assert "--images" in capsys.readouterr().err
