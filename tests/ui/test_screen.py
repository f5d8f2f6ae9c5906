"""Repeatedly shown text, on terminals of several sizes."""

from __future__ import annotations

import os
import sys
import time

import pytest

from cotswold.ui.screen import Screen, refresh

LINES = ["a" * 20, "", "b" * 81, "c", "d"]


@pytest.mark.parametrize(
    ("columns", "rows", "shown"),
    [(80, 24, 5), (80, 6, 4), (10, 6, 2), (80, 5, 3), (0, 6, 5), (80, 0, 5), (0, 0, 5), (80, 1, 5)],
)
def test_no_more_is_shown_than_a_terminal_has_room_for_and_all_where_it_has_no_size(
    columns: int, rows: int, shown: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(os, "get_terminal_size", lambda: os.terminal_size((columns, rows)))

    def leave(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", leave)
    heard = list[Screen]()

    def lines(screen: Screen) -> list[str]:
        heard.append(screen)
        return LINES

    refresh(lines)
    assert capsys.readouterr().out == "\x1b[2J\x1b[H" + "\n".join(LINES[:shown]) + "\n"
    assert heard == [Screen(max(0, rows - 1) or None, columns or None)]
