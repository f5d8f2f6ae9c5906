from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotswold.errors import GeometryError
from cotswold.geometry import Box


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    start = tuple(draw(st.integers(-3, 3)) for _ in range(2))
    return Box(start, tuple(a + draw(st.integers(0, 4)) for a in start))


@given(boxes())
def test_size_and_points_agree(box: Box) -> None:
    points = list(box.points())
    assert len(points) == len(set(points)) == box.size
    assert points == sorted(points)


@given(boxes(), boxes())
def test_an_intersection_holds_the_points_of_both(a: Box, b: Box) -> None:
    assert set(a.intersect(b).points()) == set(a.points()) & set(b.points())


@given(boxes(), boxes())
def test_containing_means_that_no_point_is_outside(a: Box, b: Box) -> None:
    assert a.contains(b) == (set(b.points()) <= set(a.points()))


@given(boxes(), st.integers(-5, 5), st.integers(-5, 5))
def test_shifting_moves_every_point(box: Box, dy: int, dx: int) -> None:
    assert set(box.shift((dy, dx)).points()) == {(y + dy, x + dx) for y, x in box.points()}


def test_a_box_within_another_begins_where_it_lies_in_it() -> None:
    assert Box((4, 7), (5, 9)).relative_to(Box((3, 5), (9, 9))) == Box((1, 2), (2, 4))


def test_slices_select_the_box() -> None:
    box = Box((1, 0), (3, 2))
    rows = [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert [row[box.slices[1]] for row in rows[box.slices[0]]] == [[3, 4], [6, 7]]
    assert Box.whole((3, 2)) == Box((0, 0), (3, 2))


@pytest.mark.parametrize(
    ("start", "stop", "words"), [((0,), (1, 2), "as many"), ((2, 0), (1, 3), "stop before its start")]
)
def test_impossible_boxes_are_refused(start: tuple[int, ...], stop: tuple[int, ...], words: str) -> None:
    with pytest.raises(GeometryError, match=words):
        Box(start, stop)
