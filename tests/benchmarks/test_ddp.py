"""benchmarks/ddp.py: its methods learn, its summary compares by seed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.training.small_recipes import draw_labelled, supervised

from cotswold.bench.measure import Document
from cotswold.recipe import parse
from cotswold.training import open_store
from ddp import BESIDE, ddp, summary
from lib.command import main
from lib.downpour.baselines import Race
from lib.downpour.time_to_accuracy import NAMES, OURS, first, raced

LAYERS = '[[network.layers]]\ntype = "linear"\nfeatures = 4'


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_each_rival_reaches_what_is_asked_of_it(name: str, tmp_path: Path) -> None:
    draw_labelled(tmp_path / "images", 30)
    text = supervised(tmp_path / "images", layers=LAYERS)
    overrides = ["training.strategy=downpour", "training.epochs=100000", "data.validation=0.3"]
    recipe = parse(text, overrides=overrides)
    store = open_store(recipe, tmp_path / "stores")
    race = Race(0.01, 3, 400, 80, 8, momentum=0.5)
    found = raced(name, recipe, store, tmp_path / "rows", race, 0.01)
    assert found["samples"] is not None and int(str(found["samples"])) >= 80
    assert 0.01 <= float(str(found["best_accuracy"])) <= 1
    assert float(str(found["samples_a_second"])) > 0
    never = raced(name, recipe, store, tmp_path / "rows", race, 1.1)
    assert never["seconds"] is None


@pytest.mark.parametrize(
    ("accuracies", "place"),
    [([0, 0, 0, 3, 0, 0], 3), ([0, 3, 0, 3, 0, 0, 0, 3], 1), ([0, 0, 0, 0, 2, 3, 1, 3], 5), ([1] * 9, None)],
)
def test_the_first_place_is_found_among_those_before_the_first_fourth_that_has_it(
    accuracies: list[float], place: int | None
) -> None:
    judged: list[int] = []

    def judge(each: int) -> float:
        judged.append(each)
        return accuracies[each]

    found, best = first(len(accuracies), judge, 3)
    assert found == place
    assert best == max(accuracies[each] for each in judged)
    assert len(judged) == len(set(judged))


def test_the_rate_that_gets_there_first_is_taken_and_seeds_are_compared_one_by_one() -> None:
    def cell(seconds: float | None, rate: float = 0.1, best: float = 0.5) -> Document:
        return {"seconds": seconds, "rate": rate, "momentum": 0.9, "best_accuracy": best}

    cells = {
        f"tune, {OURS}, 0.1, 0.9": cell(None, 0.1, 0.9),
        f"tune, {OURS}, 0.2, 0.9": cell(9.0, 0.2),
        f"tune, {BESIDE}, 0.1, 0.9": cell(None, 0.1, 0.9),
        f"tune, {BESIDE}, 0.2, 0.9": cell(None, 0.2, 0.8),
        f"equal, {OURS}, 0": cell(2.0),
        f"equal, {OURS}, 1": cell(3.0),
        f"equal, {OURS}, 2": cell(None),
        f"equal, {BESIDE}, 0": cell(4.0),
        f"equal, {BESIDE}, 1": cell(2.0),
    }
    told = summary(cells)
    assert told["tuned"] == {OURS: (0.2, 0.9), BESIDE: (0.1, 0.9)}
    rows = told["rows"]
    assert isinstance(rows, list)
    ours = rows[0]
    assert (ours["case"], ours["of_ddp"], ours["reached"], ours["bar"]) == ("equal", 1.0, "2 of 3", 1.05)


@pytest.mark.soak
def test_samples_that_vary_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--set",
        'data.augment=[{name = "flip"}]',
        "--stores",
        str(tmp_path),
        "--out",
        str(tmp_path),
    ]
    with pytest.raises(SystemExit) as left:
        main(ddp, words)
    assert left.value.code == 2
    assert "has data.augment, but" in capsys.readouterr().err
    assert not (tmp_path / "ddp.json").exists()
