"""Contiguous ranges of values as boxes."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cotswold.checkpoint.chunk_file import contiguous_boxes

shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)


@given(shapes, st.data())
def test_the_boxes_of_a_stretch_hold_its_values_in_their_order(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, prod(shape)))
    stop = data.draw(st.integers(start, prod(shape)))
    values = np.arange(prod(shape)).reshape(shape)
    boxes = list(contiguous_boxes(shape, start, stop))
    assert [int(each) for box in boxes for each in values[box.slices].ravel()] == list(range(start, stop))
    assert all(box.size for box in boxes)
    assert len(boxes) <= max(2 * len(shape) - 1, 1)
