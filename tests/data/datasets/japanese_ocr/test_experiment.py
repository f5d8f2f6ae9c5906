"""A small Bunyip experiment: cells end, resume, are evaluated once, and are shown on a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bunyip as script
from cotswold.data.datasets.japanese_ocr import JapaneseSet
from cotswold.errors import UserError
from lib.bunyip import paper
from lib.bunyip.cells import Cell, Experiment
from lib.bunyip.error_rates import errors
from lib.bunyip.page import drawing, page
from lib.bunyip.summary import Prices, summary

PATTERN = paper.gradient_flops(1)
SMALL = 60


def ran(made: JapaneseSet, folder: Path, **words: Any) -> dict[str, Any]:
    """Return the results of the command."""
    given: dict[str, Any] = {
        "run": folder / "run",
        "out": folder / "out",
        "patterns": [SMALL],
        "method": ["lbfgs"],
        "loss": ["squared_error"],
        "flops": 3.0 * SMALL * PATTERN,
        "set": ["training.sample_fraction=1.0", "training.cycle_iterations=", "training.portion_size=32"],
        "threads": 1,
        "turn": 1e15,
        **words,
    }
    script.bunyip(made.path, **given)
    found: dict[str, Any] = json.loads((folder / "out" / "bunyip.json").read_text())
    return found


def test_a_cell_ends_with_its_flops_and_goes_on_with_more(made: JapaneseSet, tmp_path: Path) -> None:
    first = ran(made, tmp_path)["cells"][0]
    assert first["limited"] and first["flops"] >= 3 * SMALL * PATTERN
    assert first["flops"] % PATTERN == 0
    assert set(first["held_out"]["natural"]) == {"validation", "degradations", "families"}
    again = ran(made, tmp_path)["cells"][0]
    assert again["curve"] == first["curve"], "a finished cell is not trained again"
    more = ran(made, tmp_path, flops=6.0 * SMALL * PATTERN)["cells"][0]
    assert more["flops"] > first["flops"]
    assert more["curve"]["losses"][: len(first["curve"]["losses"])] == first["curve"]["losses"]
    text = (tmp_path / "run" / "bunyip.html").read_text()
    assert "L-BFGS, squared error" in text and "no price given" in text
    assert (tmp_path / "out" / "bunyip.svg").read_text().startswith("<?xml")


def test_cells_take_turns(made: JapaneseSet, tmp_path: Path) -> None:
    cells = [Cell("natural", SMALL, "cg", "squared_error"), Cell("natural", SMALL, "lbfgs", "squared_error")]
    experiment = Experiment({"natural": made.path}, tmp_path, 10.0, {})
    order = [(cell.method, target) for cell, target in script._turns(experiment, cells, 4.0)]
    assert order == [("cg", 4.0), ("lbfgs", 4.0), ("cg", 8.0), ("lbfgs", 8.0), ("cg", 10.0), ("lbfgs", 10.0)]


def test_errors_are_over_all_over_the_commonest_and_a_mean_over_classes(made: JapaneseSet) -> None:
    labels = made.held_out_labels("validation")
    common = np.isin(labels, made.most_frequent(0.4))
    read = np.where(common, labels, (labels + 1) % len(made.classes))
    found = errors(read, labels, made)
    assert found.common == 0.0 and found.error == pytest.approx(float((~common).mean()), rel=1e-4)
    classes = np.unique(labels)
    wrong = np.mean([not np.isin(each, made.most_frequent(0.4)) for each in classes])
    assert found.mean_over_classes == pytest.approx(float(wrong), rel=1e-4)
    assert len(found.misread) and all(true != said for _, true, said in found.misread)
    assert errors(labels, labels, made).error == 0.0


def test_flops_are_those_that_the_paper_computes() -> None:
    assert paper.value_flops(9_264_000) == pytest.approx(32e12, rel=0.02)
    assert paper.gradient_flops(9_264_000) == pytest.approx(92e12, rel=0.01)
    assert pytest.approx(92.4, abs=0.05) == paper.HARDWARE_DOLLARS * 100 / (paper.FLOPS_PER_SECOND / 1e6)


def test_cost_is_told_where_a_price_is_given_and_only_there() -> None:
    cell = {**vars(Cell("natural", 10, "cg", "squared_error")), "flops": 2e12, "seconds": 100.0}
    free = summary([cell], [], Prices())["account"]
    assert free["flops_per_second"] == 2e10
    assert free["cents_per_mflops"] is None and free["dollars"] is None
    paid = summary([cell], [], Prices(hardware_dollars=400.0, rent_dollars_per_hour=3.6))["account"]
    assert paid["cents_per_mflops"] == 2.0 and paid["dollars"] == 0.1


def test_a_cell_that_goes_on_beyond_its_file_counts_once() -> None:
    cell = {**vars(Cell("natural", 10, "cg", "squared_error")), "flops": 2e12, "seconds": 100.0}
    more = {**cell, "flops": 3e12, "seconds": 150.0}
    assert summary([cell], [more], Prices())["account"]["flops"] == 3e12


def test_a_page_is_written_before_any_cell_has_ended(made: JapaneseSet) -> None:
    found = {**summary([], [], Prices()), "machine": {"processor": "some"}, "command": "python"}
    text = page(found, made)
    assert "No cell is finished" in text and "51\u202f%" in text
    assert drawing(found).startswith("<?xml")


def test_a_set_with_other_frequencies_is_refused(made: JapaneseSet, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="natural frequencies; make the other set"):
        ran(made, tmp_path, equal=made.path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"method": ["adam"]}, "adam is none of cg, lbfgs"),
        ({"flops": 0.0}, "numbers of FLOPs"),
        ({"set": ["sample_fraction"]}, "write FIELD=VALUE"),
    ],
)
def test_mistakes_are_named(made: JapaneseSet, tmp_path: Path, words: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        ran(made, tmp_path, **words)
    assert not (tmp_path / "run").exists()
