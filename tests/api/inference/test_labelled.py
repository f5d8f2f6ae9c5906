"""Labelled samples that evaluate a supervised run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cotswold
from cotswold.analysis import Classification
from cotswold.errors import SourceError, UserError

RECIPE = """
name = "sides"
data = {{ type = "vectors", source = "{source}", labels = "file", validation = 0.0, test = 0.0 }}
network = {{ layers = [] }}
training = {{ strategy = "supervised", epochs = 8, batch_size = 8, learning_rate = 0.5, threads = 1 }}
"""


def table(path: Path, names: list[str], count: int = 40) -> Path:
    """Write vectors whose class is the sign of their first number."""
    drawn = np.random.default_rng(1).normal(size=(count, 2)).astype(np.float32)
    drawn[:, 0] += np.sign(drawn[:, 0])
    np.savez(path, x=drawn, labels=np.array(names)[(drawn[:, 0] > 0).astype(int)])
    return path


def judged(run: cotswold.Run, **words: Any) -> Classification:
    found = cotswold.evaluate(run, **words)
    assert isinstance(found, Classification)
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> cotswold.Run:
    """Return a run without samples for its evaluation."""
    folder = tmp_path_factory.mktemp("labelled")
    recipe = folder / "sides.toml"
    recipe.write_text(RECIPE.format(source=table(folder / "own.npz", ["left", "right"])))
    return cotswold.train_recipe(recipe, folder / "run", stores=folder / "stores", progress=False)


def test_an_accuracy_on_samples_that_were_learnt_from_is_given_only_if_asked_for(run: cotswold.Run) -> None:
    with pytest.raises(UserError, match=r"neither test nor validation samples.*--source"):
        cotswold.evaluate(run)
    found = judged(run, split="train")
    assert (found.split, found.accuracy) == ("train", 1.0)
    assert not run.directory.classification.exists()
    with pytest.raises(UserError, match="no samples for 'test'; its splits are train"):
        cotswold.evaluate(run, split="test")


def test_a_run_is_judged_on_the_labelled_samples_of_another_source(run: cotswold.Run, tmp_path: Path) -> None:
    """Classes are matched by name, in any order."""
    swapped = judged(run, source=table(tmp_path / "swapped.npz", ["right", "left"]))
    assert swapped.accuracy == 0.0
    one = tmp_path / "one.npz"
    np.savez(one, x=np.array([[3.0, 0.0]], np.float32), labels=np.array(["right"]))
    assert judged(run, source=one).confusion == ((0, 0), (0, 1))


def test_labels_that_the_run_cannot_know_are_refused(run: cotswold.Run, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"1 class that the run did not learn \(up\); it learnt left"):
        cotswold.evaluate(run, source=table(tmp_path / "up.npz", ["left", "up"]))
    np.savez(tmp_path / "numbers.npz", x=np.zeros((3, 2), np.float32), y=np.zeros((3, 1), np.float32))
    with pytest.raises(SourceError, match="has 1 regression target, but the run learnt 2 classes"):
        cotswold.evaluate(run, source=tmp_path / "numbers.npz")
    with pytest.raises(UserError, match="labels applies to a source"):
        cotswold.evaluate(run, labels="file")
    with pytest.raises(UserError, match="source and split exclude each other"):
        cotswold.evaluate(run, source=tmp_path / "up.npz", split="train")
