"""Figures of a run for its loggers."""

from __future__ import annotations

from tests.api.conftest import Desk

from cotswold.api.run_figures import run_figures


def test_a_run_of_stacks_has_a_picture_of_the_filters_of_each(desk: Desk) -> None:
    found = run_figures(desk.stacks.path)
    assert list(found) == ["filters of stack 1", "filters of stack 2"]
    assert all(content[:8] == b"\x89PNG\r\n\x1a\n" for content in found.values())
    assert run_figures(desk.layers.path) == {}
