"""Moved runs: without their images or their store, or with changed images."""

from __future__ import annotations

import csv
import json
import shutil
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.cli.command import Said, cotswold
from tests.support.demo_runs import DemoFolder
from tests.support.training.small_recipes import draw, draw_labelled, greedy, supervised


class Home(DemoFolder):
    """Images, a finished run trained on them, and its store."""

    @property
    def run(self) -> Path:
        return self.path / "run"

    def train(self, recipe: str) -> None:
        (self.path / "recipe.toml").write_text(recipe)
        said = cotswold("train", self.path / "recipe.toml", "--run", self.run, "--stores", self.stores)
        assert said.status == 0, said.err

    def lose_store(self) -> None:
        shutil.rmtree(self.stores)

    def lose_images(self) -> None:
        shutil.rmtree(self.images)

    def grow(self) -> None:
        """Add images of one kind, which have another spectrum and whitening."""
        draw(self.images / "upright", 40, level=False, first=5000)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Make a run of stacks; commands run in a folder without stores."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    home = Home(tmp_path)
    draw_labelled(home.images, 20)
    home.train(greedy(home.images))
    draw(tmp_path / "new" / "level", 16, level=True, first=100)
    draw(tmp_path / "new" / "upright", 16, level=False, first=200)
    return home


def features(home: Home) -> NDArray[np.float32]:
    out = home.path / "features.npy"
    out.unlink(missing_ok=True)
    out.with_suffix(".csv").unlink(missing_ok=True)
    said = cotswold("features", home.run, home.path / "new", out)
    assert said.status == 0, said.err
    found: NDArray[np.float32] = np.load(out)
    return found


def evaluate(home: Home, *words: object) -> Said:
    new = home.path / "new"
    sources = ("--positives", new / "level", "--negatives", new / "upright", "--name", "level")
    return cotswold("evaluate", home.run, *sources, "--splits", 1, *words)


def test_features_are_the_same_where_the_folder_has_grown_and_the_store_is_lost(home: Home) -> None:
    before = features(home)
    home.lose_store()
    home.grow()
    assert np.array_equal(features(home), before)


def test_a_run_that_came_without_its_images_gives_features_and_a_report(home: Home) -> None:
    before = features(home)
    home.lose_store()
    home.lose_images()
    assert np.array_equal(features(home), before)
    said = cotswold("report", home.run)
    assert said.status == 0 and said.err == ""


def test_a_run_that_came_without_its_images_is_evaluated_and_what_is_left_out_is_said(home: Home) -> None:
    before = json.loads(evaluate(home, "--json").out)["objects"][0]
    home.lose_store()
    home.lose_images()
    said = evaluate(home, "--json")
    assert said.status == 0, said.err
    assert "k-means is skipped" in said.err
    after = json.loads(said.out)["objects"][0]
    assert after["network"] == before["network"]
    assert after["random"] and not after["dictionary"]


def test_a_store_made_anew_of_other_images_takes_no_part_in_an_evaluation(home: Home) -> None:
    before = json.loads(evaluate(home, "--json").out)["objects"][0]
    home.lose_store()
    home.grow()
    said = evaluate(home, "--json")
    assert said.status == 0
    assert "are not those that" in said.err and "was trained on" in said.err
    after = json.loads(said.out)["objects"][0]
    assert after["network"] == before["network"]
    assert not after["dictionary"]


def test_a_run_is_not_taken_up_with_other_images(home: Home) -> None:
    home.lose_store()
    home.grow()
    said = cotswold("train", "--run", home.run, "--resume")
    assert said.status == 1
    assert "are not those that" in said.error


def test_a_supervised_run_that_came_alone_says_which_images_it_is_tested_on(home: Home) -> None:
    shutil.rmtree(home.run)
    home.train(supervised(home.images))
    home.lose_store()
    home.lose_images()
    said = cotswold("evaluate", home.run)
    assert said.status == 2 and "own labelled samples are not available" in said.error
    assert "--stores" in said.error and "--source" in said.error


def test_classes_are_named_by_a_supervised_run_that_came_alone(home: Home) -> None:
    shutil.rmtree(home.run)
    home.train(supervised(home.images))

    def predictions() -> list[dict[str, str]]:
        said = cotswold("predict", home.run, home.path / "new")
        assert said.status == 0, said.err
        return list(csv.DictReader(StringIO(said.out)))

    before = predictions()
    home.lose_store()
    draw(home.images / "askew", 5, level=True)  # one class more
    assert predictions() == before
    home.lose_images()
    assert predictions() == before


def test_a_control_is_tested_on_images_of_its_own_preparation(home: Home) -> None:
    other = Home(home.path / "other")
    shutil.copytree(home.images, other.images)
    other.train(
        greedy(other.images).replace(
            "validation", "per_image_standardise = false, whiten_cutoff = 0.3, validation"
        )
    )
    found = json.loads(evaluate(home, "--json", "--control", other.run).out)["objects"][0]
    shutil.copytree(home.path / "new", other.path / "new")
    alone = json.loads(evaluate(other, "--json").out)["objects"][0]
    assert found["control"] == alone["network"]
