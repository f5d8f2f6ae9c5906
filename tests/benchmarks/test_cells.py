"""Cells that are kept one by one, and the images that replace MNIST."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotswold.bench.measure import Document
from cotswold.data import open_source
from cotswold.errors import UserError
from lib.cells import Cells
from lib.mnist import draw


def count(found: dict[str, Document]) -> Document:
    return {"cells": len(found)}


def test_what_is_finished_is_not_measured_again(tmp_path: Path) -> None:
    measured: list[str] = []

    def measure(name: str) -> Document:
        if name == "b" and len(measured) == 1:
            raise KeyboardInterrupt
        measured.append(name)
        return {"is": name}

    plan = [(name, lambda name=name: measure(name)) for name in "abc"]
    with pytest.raises(KeyboardInterrupt):
        Cells("some", tmp_path, 60, count, seconds=1).run(plan)
    measured.append("a kill")
    again = Cells("some", tmp_path, 60, count, seconds=1)
    assert again.run(plan)
    assert measured == ["a", "a kill", "b", "c"]
    assert again.leave()["summary"] == {"cells": 3}


def test_no_cell_begins_that_would_end_too_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("lib.cells.time.monotonic", lambda: now[0])

    def measure() -> Document:
        now[0] += 50.0
        return {}

    cells = Cells("some", tmp_path, 2.0, count)
    assert not cells.run([(name, measure) for name in "abcd"])
    assert list(cells.found) == ["a", "b"]


def test_cells_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    Cells("some", tmp_path, 1, count, seconds=1).leave()
    with pytest.raises(UserError, match="seconds: 1, now 2"):
        Cells("some", tmp_path, 1, count, seconds=2)


def test_drawn_images_are_read_as_mnist_is(tmp_path: Path) -> None:
    draw(tmp_path, {"train": 30, "t10k": 10})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    draw(tmp_path, {"train": 30, "t10k": 10})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    source = open_source(str(tmp_path))
    assert len(source) == 40
