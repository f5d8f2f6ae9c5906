from __future__ import annotations

from pathlib import Path

import pytest

from cotswold.errors import DiskFullError, UserError
from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window
from cotswold.recipe import load
from lib.offload.limit import memory_group
from lib.offload.measure import OffloadCase, largest_rows, offload, part_of
from lib.offload.raw_disk import RawDisk

SMALL = StackGeometry(
    BlockLocal(MapShape(2, 40, 12), Window(6, 2), Window(6, 2), 2, 2, 4), Smoothing(3), Smoothing(3, True)
)


@pytest.mark.soak
def test_a_measurement_leaves_the_disk_as_it_was_and_says_what_moved(tmp_path: Path) -> None:
    said: list[str] = []
    found = offload(OffloadCase(SMALL, 4, None, 2, saved=True), tmp_path, said.append)
    assert list(tmp_path.iterdir()) == []
    assert said == ["updates in memory", "updates from the disk"]
    assert found["parameters"] == SMALL.filters.parameters and found["limited_by"] is None
    written = found["written_bytes"]
    assert isinstance(written, int) and written > 0
    assert isinstance(found["over_the_larger"], dict) and found["over_the_larger"]["median"] > 0
    assert isinstance(found["checkpoint"], dict) and found["checkpoint"]["next_update_seconds"] > 0


def test_a_measurement_that_does_not_fit_the_disk_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OffloadCase, "stack_bytes", 1 << 60)
    with pytest.raises(DiskFullError, match="fewer --rows"):
        offload(OffloadCase(SMALL, 4, None, 1, saved=False), tmp_path, lambda said: None)


def test_the_first_rows_of_a_stack_are_a_stack() -> None:
    recipe = load("coates2013-11b")
    whole, part = (part_of(recipe, 2, rows).filters for rows in (None, 10))
    assert part.grid == (10, whole.grid[1]) and part.filters_shape[1:] == whole.filters_shape[1:]


@pytest.mark.parametrize(("stack", "rows"), [(0, None), (4, None), (1, 0)])
def test_a_stack_that_is_not_there_is_refused(stack: int, rows: int | None) -> None:
    with pytest.raises(UserError):
        part_of(load("coates2013-11b"), stack, rows)


def test_the_largest_part_is_half_of_what_the_disk_holds_once(tmp_path: Path) -> None:
    recipe = load("demo")
    assert largest_rows(recipe, 1, tmp_path, 2) == part_of(recipe, 1, None).filters.grid[0]


def test_where_there_are_no_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    with memory_group(1 << 20, tmp_path) as group:
        assert group is None
    assert [path.name for path in tmp_path.rglob("*")] == ["memory"]


def test_raw_files_are_removed(tmp_path: Path) -> None:
    raw = RawDisk(tmp_path, 10_000, 3)
    assert raw.seconds(20_000, 5_000) > 0
    raw.remove()
    assert list(tmp_path.iterdir()) == []
