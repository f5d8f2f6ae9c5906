from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotswold.errors import GeometryError
from cotswold.geometry import Window


@st.composite
def windows(draw: st.DrawFn) -> Window:
    size = draw(st.integers(1, 7))
    return Window(
        size, draw(st.integers(1, 8)), draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))
    )


def positions(window: Window, extent: int) -> list[list[int]]:
    """Return the inputs of every output, found by sliding the window over the padded axis."""
    axis = range(-window.pad_before, extent + window.pad_after)
    starts = axis[:: window.stride]
    return [list(range(s, s + window.size)) for s in starts if s + window.size <= axis.stop]


@given(windows(), st.integers(1, 20))
def test_outputs_are_the_places_where_the_window_fits(window: Window, extent: int) -> None:
    assert window.outputs(extent) == len(positions(window, extent))


@given(windows(), st.integers(1, 20))
def test_reads_and_skipped_split_every_window_into_map_and_padding(window: Window, extent: int) -> None:
    for output, places in enumerate(positions(window, extent)):
        inside = [p for p in places if 0 <= p < extent]
        assert list(range(*window.reads(output, extent))) == inside
        before, after = window.padding_read(output, extent)
        assert (before, after) == (sum(p < 0 for p in places), sum(p >= extent for p in places))
        assert before + len(inside) + after == window.size


@given(windows(), st.integers(1, 20))
def test_every_output_reads_at_least_one_real_input(window: Window, extent: int) -> None:
    for output in range(window.outputs(extent)):
        start, stop = window.reads(output, extent)
        assert start < stop


@given(st.integers(1, 9), st.integers(1, 30))
def test_a_same_window_keeps_the_extent(size: int, extent: int) -> None:
    assert Window.same_padding(size).outputs(extent) == extent


@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 60))
def test_a_same_window_has_an_output_for_every_stride_with_no_more_zeros_than_that_takes(
    size: int, stride: int, extent: int
) -> None:
    window = Window.same_padding(size, stride, extent=extent)
    assert window.outputs(extent) == -(-extent // stride)
    assert window.pad_after - window.pad_before in (0, 1)
    fewer = window.pad_before + window.pad_after - 1
    if fewer >= 0:
        assert Window(size, stride, fewer // 2, fewer - fewer // 2).outputs(extent) < window.outputs(extent)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0,), "size and stride"),
        ((3, 0), "size and stride"),
        ((3, 1, -1), "negative"),
        ((3, 1, 0, 3), "nothing but"),
    ],
)
def test_impossible_windows_are_refused(arguments: tuple[int, ...], words: str) -> None:
    with pytest.raises(GeometryError, match=words):
        Window(*arguments)


@given(windows(), st.integers(1, 30))
def test_what_all_outputs_read_is_counted_without_walking_over_them(window: Window, extent: int) -> None:
    ranges = [window.reads(output, extent) for output in range(window.outputs(extent))]
    assert window.read_by_all(extent) == sum(stop - start for start, stop in ranges)
