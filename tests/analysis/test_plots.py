"""Curves of few points."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from cotswold.analysis.plots import Line, Palette, draw


@pytest.mark.parametrize(("points", "marker"), [(1, "o"), (2, "None")])
def test_a_single_point_is_marked_for_no_line_shows_it(points: int, marker: str) -> None:
    axes = Figure().add_subplot()
    draw(axes, [Line("loss", range(points), range(points))], Palette(), x="samples", y="loss")
    assert [each.get_marker() for each in axes.get_lines()] == [marker]
