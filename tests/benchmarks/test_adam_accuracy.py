"""benchmarks/adam_accuracy.py: tuning, final cells, comparisons, and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.training.small_recipes import draw_labelled, supervised

from adam_accuracy import adam_accuracy
from cotswold.recipe import load
from lib.accuracy.cases import CASES, TUNING_SEED, Case, Trained
from lib.accuracy.summary import paired, summary
from lib.command import main
from lib.papers.runner import BENCHMARKS

RESULTS = BENCHMARKS / "results"
LAYERS = '[[network.layers]]\ntype = "linear"\nfeatures = 4'


def status(*words: object) -> object:
    with pytest.raises(SystemExit) as left:
        main(adam_accuracy, [str(word) for word in words])
    return left.value.code


def small(folder: Path) -> list[object]:
    """Return arguments for a recipe that takes no time."""
    draw_labelled(folder / "images", 30)
    recipe = folder / "small.toml"
    recipe.write_text(supervised(folder / "images", layers=LAYERS))
    return [
        recipe,
        "--stores",
        folder / "stores",
        "--out",
        folder,
        "--epochs",
        2,
        "--tuning-epochs",
        1,
        "--set",
        "data.test=0.2",
    ]


def found(folder: Path) -> Any:
    return json.loads((folder / "adam-accuracy.json").read_text())


def test_rates_are_tuned_without_test_samples_and_seeds_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*small(tmp_path), "--replicas", 1, "--replicas", 4, "--seeds", 2]
    assert status(*words) == 0
    assert "several replicas compared with one" in capsys.readouterr().out
    cells = found(tmp_path)["cells"]
    tuning = {key: cell for key, cell in cells.items() if key.startswith("tune; ")}
    assert len(tuning) == 5 and not any("test" in cell for cell in tuning.values())
    assert {cell["seed"] for cell in tuning.values()} == {TUNING_SEED}
    assert [key for key in cells if key not in tuning] == [
        f"small; {replicas}; {seed}" for seed in (0, 1) for replicas in (1, 4)
    ]
    alone, four = cells["small; 1; 0"], cells["small; 4; 0"]
    assert alone["staleness"] == 0 < four["staleness"]
    best = min((cell["way"][-1]["loss"], cell["rate"]) for key, cell in tuning.items() if "; 4; " in key)
    assert four["rate"] == best[1]
    samples = [entry["samples"] for entry in alone["way"]]
    assert samples == sorted(samples) and len(samples) > 10 and alone["way"][-1]["learnt"] > 0
    (row,) = found(tmp_path)["summary"]["compared"]
    assert (row["replicas"], row["seeds"]) == (4, 2) and row["low"] <= row["points"] <= row["high"]


def test_the_same_command_goes_on_and_another_recipe_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*small(tmp_path), "--replicas", 1]
    assert status(*words, "--seeds", 1) == 0
    first = found(tmp_path)["cells"]["small; 1; 0"]
    assert status(*words, "--seeds", 2) == 0
    cells = found(tmp_path)["cells"]
    assert list(cells) == ["small; 1; 0", "small; 1; 1"] and cells["small; 1; 0"] == first
    page = (tmp_path / "adam-accuracy.html").read_text()
    assert "Does asynchrony help?" in page and page.count("<svg") >= 2 and str(tmp_path) not in page
    assert "<svg" in (tmp_path / "adam-accuracy.svg").read_text()
    capsys.readouterr()
    assert status(*words, "--set", "training.learning_rate=0.3") == 2
    assert "another recipe" in capsys.readouterr().err


def test_a_recipe_with_data_servers_is_an_ordinary_run_of_one_replica(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = [*small(tmp_path), "--set", "data.servers=1"]
    assert status(*served, "--replicas", 1, "--seeds", 1) == 0
    cell = found(tmp_path)["cells"]["small; 1; 0"]
    samples = [entry["samples"] for entry in cell["way"]]
    assert len(samples) > 1 and samples == sorted(samples) and 0 <= cell["test"] <= 1
    assert cell["validation"] == cell["way"][-1]["accuracy"] and cell["epochs"] == 2
    assert [*(tmp_path / "stores" / "runs").iterdir()] == [], "a finished run leaves nothing"
    assert "<svg" in (tmp_path / "adam-accuracy.svg").read_text()
    assert status(*served, "--replicas", 4, "--seeds", 1) == 2
    assert "use --replicas 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--case", "imagenet"], "--case imagenet is none of mnist, "),
        (["demo"], 'name a recipe with strategy "supervised"'),
        (["cifar10", "--case", "mnist"], "replaces the cases"),
        (["--seeds", "0"], "must be at least 1, got 0"),
    ],
    ids=["case", "strategy", "both", "seeds"],
)
def test_a_mistake_is_named(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(*words, "--out", tmp_path) == 2
    assert sentence in capsys.readouterr().err


def test_an_answer_needs_an_interval_that_leaves_out_zero() -> None:
    one = paired([(0.995, 0.993)])
    assert (one["points"], one["low"], one["asynchrony"]) == (pytest.approx(0.2), None, "too few seeds")
    helps = paired([(0.995, 0.993), (0.9952, 0.9931), (0.9949, 0.993)])
    assert helps["asynchrony"] == "helps"
    # 0.2 ± 4.303 x 0.01 / sqrt(3)
    assert (helps["low"], helps["high"]) == (pytest.approx(0.1752, abs=1e-4), pytest.approx(0.2248, abs=1e-4))
    assert paired([(one, some) for some, one in ((0.995, 0.993), (0.9952, 0.9931))])["asynchrony"] == "harms"
    unsure = paired([(0.995, 0.993), (0.991, 0.993)])
    assert unsure["asynchrony"] == "no difference shown"


def test_seeds_that_one_of_two_lacks_are_not_compared() -> None:
    def cell(test: float) -> dict[str, object]:
        return {"test": test, "validation": test, "staleness": 0.0, "rule": "sgd", "rate": 0.1}

    cells = {
        "mnist; 1; 0": cell(0.994),
        "mnist; 16; 0": cell(0.995),
        "mnist; 16; 1": cell(0.9),
        "tune; mnist; 16; sgd 0.1": {},
    }
    told: Any = summary(cells, CASES)
    (compared,) = told["compared"]
    assert (compared["points"], compared["seeds"]) == (pytest.approx(0.1), 1)
    one, many = told["rows"]
    assert (one["is_met"], many["is_met"], many["test"]) == (True, False, pytest.approx(0.9475))


def test_a_set_without_test_samples_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = small(tmp_path)
    assert status(*words, "--replicas", 1, "--set", "data.test=0") == 2
    assert "has no test samples" in capsys.readouterr().err


def test_cells_of_other_data_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*small(tmp_path), "--replicas", 1, "--seeds", 1]
    assert status(*words) == 0
    path = tmp_path / "adam-accuracy.json"
    kept = found(tmp_path)
    assert len(kept["cells"]["small; 1; 0"]["store"]) == 64
    draw_labelled(tmp_path / "others", 33)
    others = [*words, "--set", f"data.source={tmp_path / 'others'}"]
    assert status(*others) == 2
    assert "other data" in capsys.readouterr().err
    del kept["cells"]["small; 1; 0"]["store"]  # as before it was kept: of the data that the recipe names
    path.write_text(json.dumps(kept))
    assert status(*words) == 0 and status(*others) == 2
    assert found(tmp_path)["cells"] == kept["cells"]


def test_cells_stay_comparable_whatever_says_nothing_of_the_recipe(tmp_path: Path) -> None:
    def digest(*overrides: str) -> str:
        own = Case("digits", "adam-mnist", (1,))
        recipe = load("adam-mnist", ["data.source=digits", *overrides])
        return Trained(own, recipe, tmp_path, tmp_path, None).digest

    assert digest() == digest("data.source=other", "data.include=[]", "data.cache=2 GB")
    assert len({digest(), digest("training.learning_rate=0.04"), digest("training.epochs=31")}) == 3


def test_every_case_is_a_recipe_and_only_those_called_so_are_augmented(tmp_path: Path) -> None:
    for case in CASES:
        recipe = load(case.recipe)
        assert Trained(case, recipe, tmp_path, tmp_path, None).epochs >= 30
        assert recipe.data.type == "images"
        assert bool(recipe.data.augment) == case.name.endswith("-augmented")


def test_results_that_are_kept_go_on(tmp_path: Path) -> None:
    kept = json.loads((RESULTS / "adam-accuracy.json").read_text())["cells"]
    assert kept
    for case in CASES:
        cells = [cell for key, cell in kept.items() if case.name in key.split("; ")[:2]]
        epochs = max((cell["epochs"] for cell in cells), default=None)  # runs that tune are shorter
        own = Trained(case, load(case.recipe), tmp_path, tmp_path, epochs)
        assert all(cell["recipe"] == own.digest for cell in cells)
