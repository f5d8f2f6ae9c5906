"""Layouts say which dimensions are divided after a reshape, and how cuts move."""

from __future__ import annotations

import pytest

from cotswold.geometry import Grid, Partition
from cotswold.mesh.maps.layout import COLUMNS, ROWS, Axis, Dim, Layout, Tokens, plain

PLANE = Partition((0, 3, 8), (0, 4, 6))


def _layout(plane: Partition = PLANE) -> Layout:
    return Layout.of_map(2, 4, plane)


def _rows(*cuts: int) -> Axis:
    return Axis(cuts[-1], ROWS, cuts)


def _columns(*cuts: int) -> Axis:
    return Axis(cuts[-1], COLUMNS, cuts)


TWO, FOUR, THREE = plain(2), plain(4), plain(3)
RESHAPED: dict[tuple[int, ...], tuple[Partition, tuple[Dim, ...]]] = {
    (2, 4, 48): (PLANE, (TWO, FOUR, (_rows(0, 3, 8), _columns(0, 4, 6)))),
    (8, 8, 6): (PLANE, (plain(8), (_rows(0, 3, 8),), (_columns(0, 4, 6),))),
    (2, 2, 2, 1, 8, 6): (PLANE, (TWO, TWO, TWO, (), (_rows(0, 3, 8),), (_columns(0, 4, 6),))),
    # the third row moves to the second rank, because windows have two rows; a half is rounded up
    (2, 4, 4, 2, 6): (
        Partition((0, 4, 8), (0, 4, 6)),
        (TWO, FOUR, (_rows(0, 2, 4),), TWO, (_columns(0, 4, 6),)),
    ),
    (2, 4, 8, 2, 3): (
        Partition((0, 3, 8), (0, 3, 6)),
        (TWO, FOUR, (_rows(0, 3, 8),), (_columns(0, 1, 2),), THREE),
    ),
}


@pytest.mark.parametrize("shape", RESHAPED)
def test_a_reshape_keeps_rows_and_columns_apart_and_moves_cuts_to_windows(shape: tuple[int, ...]) -> None:
    found = _layout().reshaped(shape)
    assert found is not None
    before, after = found
    assert before.plane == RESHAPED[shape][0]
    assert after.dims == RESHAPED[shape][1]
    assert after.shape == shape
    back = after.reshaped((2, 4, 8, 6))
    assert back is not None and back[1] == before


@pytest.mark.parametrize("shape", [(2, 4, 6, 8), (2, 2, 2, 3, 16), (0, 4), (385,)])
def test_a_shape_that_is_no_product_of_factors_has_no_layout(shape: tuple[int, ...]) -> None:
    assert _layout().reshaped(shape) is None


def test_a_single_row_goes_with_the_dimension_before_whole_factors_and_else_behind() -> None:
    row, column = _rows(0, 1, 1), _columns(0, 1, 1)
    windows = Layout((TWO, (row,), (column,), plain(9), THREE), Grid(2, 2))
    found = windows.reshaped((2, 9, 3))
    assert found is not None and found[1].dims == ((*TWO, row, column), plain(9), THREE)
    wide = _layout(Partition((0, 1, 1), (0, 4, 6))).reshaped((2, 4, 6))
    assert wide is not None and wide[1].dims == (TWO, FOUR, (row, _columns(0, 4, 6)))


def test_tokens_beside_the_pixels_belong_to_the_first_rank() -> None:
    tokens = Tokens(2, Partition((0, 1, 3), (0, 2)), 1)
    grid = Grid(2, 1)
    assert tokens.extent == 9
    assert tokens.part(grid, 0) == [0, 1, 2, 3, 8]
    assert tokens.part(grid, 1) == [4, 5, 6, 7]


def test_a_layout_of_images_and_channels_before_rows_and_columns_is_that_of_a_map() -> None:
    layout = _layout()
    assert layout.is_map
    assert not layout.with_dims(layout.dims[:2] + layout.dims[:1:-1]).is_map
    assert not layout.with_dims(layout.dims[1:]).is_map
    assert layout.local_shape(3) == (2, 4, 5, 2)
