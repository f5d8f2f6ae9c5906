"""Exchange plans of any layout: correct, adjoint, and without needless messages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotswold.errors import GeometryError
from cotswold.geometry import Box, ExchangePlan, Grid, Partition

EXTENT = 9

Layout = tuple[tuple[Box, ...], tuple[Box, ...]]


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    """Draw any box of a plane, including empty ones anywhere."""
    edges = [sorted(draw(st.tuples(*[st.integers(0, EXTENT)] * 2))) for _ in range(2)]
    return Box((edges[0][0], edges[1][0]), (edges[0][1], edges[1][1]))


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Draw the boxes that ranks write and read, with any overlap."""
    ranks = draw(st.integers(1, 6))
    write, read = (tuple(draw(boxes()) for _ in range(ranks)) for _ in range(2))
    return write, read


@st.composite
def cuts(draw: st.DrawFn, parts: int) -> tuple[int, ...]:
    return (0, *sorted(draw(st.integers(0, EXTENT)) for _ in range(parts - 1)), EXTENT)


@st.composite
def partitions(draw: st.DrawFn) -> Layout:
    """Draw parts that cover the plane once, and any windows."""
    grid = Grid(draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    parts = Partition(draw(cuts(grid.rows)), draw(cuts(grid.columns)))
    return parts.boxes, tuple(draw(boxes()) for _ in range(grid.size))


def _noise(seed: int, box: Box) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(box.shape)


def _exchanged(plan: ExchangePlan, written: list[np.ndarray]) -> list[np.ndarray]:
    """Return the contents that every rank reads if all messages of the plan are sent."""
    messenger = {
        (transfer.source, transfer.target): written[rank][_within(transfer.box, plan.writes[rank])]
        for rank in range(plan.ranks)
        for transfer in plan.sends(rank)
    }
    windows = []
    for rank, box in enumerate(plan.reads):
        window = np.zeros(box.shape)
        kept = plan.local_box(rank)
        if kept.size:
            window[_within(kept, box)] += written[rank][_within(kept, plan.writes[rank])]
        for transfer in plan.receives(rank):
            window[_within(transfer.box, box)] += messenger.pop((transfer.source, transfer.target))
        windows.append(window)
    assert not messenger, "something was sent that nobody receives"
    return windows


def _within(box: Box, outer: Box) -> tuple[slice, ...]:
    return box.shift(tuple(-at for at in outer.start)).slices


@settings(max_examples=600, deadline=None)
@given(partitions())
def test_fetch_gives_exactly_the_window_of_the_global_map(layout: Layout) -> None:
    writes, reads = layout
    whole = _noise(0, Box((0, 0), (EXTENT, EXTENT)))
    windows = _exchanged(ExchangePlan(writes, reads), [whole[box.slices] for box in writes])
    for box, window in zip(reads, windows, strict=True):
        np.testing.assert_array_equal(window, whole[box.slices])


@settings(max_examples=600, deadline=None)
@given(layouts())
def test_what_is_read_is_the_sum_of_what_was_written_there(layout: Layout) -> None:
    writes, reads = layout
    written = [_noise(rank, box) for rank, box in enumerate(writes)]
    total = np.zeros((EXTENT, EXTENT))
    for box, values in zip(writes, written, strict=True):
        total[box.slices] += values
    for box, window in zip(reads, _exchanged(ExchangePlan(writes, reads), written), strict=True):
        np.testing.assert_allclose(window, total[box.slices], atol=1e-12)


@settings(max_examples=600, deadline=None)
@given(layouts())
def test_overlap_sum_is_the_adjoint_of_fetch(layout: Layout) -> None:
    plan = ExchangePlan(*layout)
    x = [_noise(rank, box) for rank, box in enumerate(plan.writes)]
    y = [_noise(100 + rank, box) for rank, box in enumerate(plan.reads)]
    forward = sum((a * b).sum() for a, b in zip(_exchanged(plan, x), y, strict=True))
    backward = sum((a * b).sum() for a, b in zip(x, _exchanged(plan.adjoint, y), strict=True))
    assert forward == pytest.approx(backward, rel=1e-10, abs=1e-10)


@settings(max_examples=600, deadline=None)
@given(layouts())
def test_a_pair_of_ranks_has_one_message_of_exactly_what_the_one_wrote_and_the_other_reads(
    layout: Layout,
) -> None:
    plan = ExchangePlan(*layout)
    sent = {(transfer.source, transfer.target): transfer.box for transfer in plan.transfers}
    assert len(sent) == len(plan.transfers)
    for source, written in enumerate(plan.writes):
        for target, read in enumerate(plan.reads):
            common = set(written.points()) & set(read.points())
            if source != target:
                assert set(sent.get((source, target), Box((0, 0), (0, 0))).points()) == common
            else:
                assert (source, target) not in sent
                assert set(plan.local_box(source).points()) == common


@settings(max_examples=200, deadline=None)
@given(layouts())
def test_what_ranks_send_is_what_others_expect_and_point_by_point_what_one_wrote_and_the_other_reads(
    layout: Layout,
) -> None:
    writes, reads = layout
    plan = ExchangePlan(writes, reads)
    wanted = sorted(
        (source, target, point)
        for point in np.ndindex(EXTENT, EXTENT)
        for source in _holders(writes, point)
        for target in _holders(reads, point)
        if source != target
    )
    for verb in (plan.sends, plan.receives):
        assert wanted == sorted(
            (each.source, each.target, point)
            for rank in range(plan.ranks)
            for each in verb(rank)
            for point in np.ndindex(EXTENT, EXTENT)
            if _holders((each.box,), point)
        )
    assert all(each.source == rank for rank in range(plan.ranks) for each in plan.sends(rank))
    assert all(each.target == rank for rank in range(plan.ranks) for each in plan.receives(rank))


def _holders(boxes: tuple[Box, ...], point: tuple[int, ...]) -> list[int]:
    """Return the boxes that contain a point, by the definition of half-open intervals."""
    return [
        rank
        for rank, box in enumerate(boxes)
        if all(first <= at < stop for first, at, stop in zip(box.start, point, box.stop, strict=True))
    ]


def test_a_plan_needs_as_many_readers_as_writers() -> None:
    with pytest.raises(GeometryError, match="1 and 2"):
        ExchangePlan((Box((0,), (1,)),), (Box((0,), (1,)), Box((0,), (1,))))
