"""The measurement of `cotswold info` is short for any stack."""

from __future__ import annotations

import pytest

from cotswold.bench.machine import probe
from cotswold.bench.machine.probe import update_seconds
from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window


def stack(*, side: int, field: int, step: int = 1, block: int = 1, maps: int = 1) -> StackGeometry:
    window = Window(field, step)
    filters = BlockLocal(MapShape(1, side, side), window, window, block, block, maps)
    return StackGeometry(filters, Smoothing(1), Smoothing(1))


def test_a_batch_that_is_larger_than_memory_is_measured_by_some_of_its_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "MAX_PIECE_BYTES", 1 << 22)
    found = update_seconds(stack(side=16, field=4), 100_000_000)
    assert found is not None and found > 0


def test_fields_far_from_each_other_are_measured_without_what_lies_between() -> None:
    found = update_seconds(stack(side=60_000, field=2, step=8000), 4)
    assert found is not None and found > 0


def test_a_block_that_is_too_large_for_a_short_measurement_has_no_time() -> None:
    assert update_seconds(stack(side=4000, field=4000, block=10, maps=100), 1) is None
