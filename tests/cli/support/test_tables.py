"""Counts and quantities printed by `cotswold info`."""

from __future__ import annotations

import pytest

from cotswold.cli.info import _figure


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("update_flops", 36_112_330_000_000, "36,112.3 GFLOP"),
        ("forward_flops", 2_000_000, "2.0 MFLOP"),
        ("forward_flops", 1_920, "1.9 kFLOP"),
        ("forward_flops", 0, "0 FLOP"),
        ("update_seconds", 1.25, "1.250 s"),
        ("update_seconds", 0.00125, "1.2 ms"),
        ("update_seconds", 0.0000125, "12.5 µs"),
    ],
)
def test_a_quantity_is_in_a_unit_of_which_there_is_one(name: str, value: float, said: str) -> None:
    assert _figure(name, value) == said
