"""Functions on a run from Python: features, predictions, evaluations, reports; and on stores and counts."""

from __future__ import annotations

import csv
import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.api.conftest import Desk
from tests.support.training.small_recipes import draw_labelled

import cotswold
from cotswold import analysis
from cotswold.errors import RunError, UserError

NUMBERS = """
name = "sums"
data = {{ type = "vectors", source = "{source}", labels = "file", validation = 0.2 }}
network = {{ layers = [] }}
objective = {{ loss = "squared_error" }}
training = {{ strategy = "supervised", epochs = 8, batch_size = 10, learning_rate = 0.02, threads = 1 }}
"""
VECTOR_STACK = """
name = "vectors"
data = {{ type = "vectors", source = "{source}" }}
network = {{ stacks = [{{ kernel_size = 1, block = [1, 1], channels = 6, pool = 1, norm = 1 }}] }}
training = {{ strategy = "greedy", epochs = 0.5, batch_size = 10, threads = 1 }}
"""


def test_features_are_arrays_of_one_length_and_those_that_the_file_holds(desk: Desk, tmp_path: Path) -> None:
    found = cotswold.features(desk.stacks, desk.images, labels="folders")
    assert found.features.shape == (60, 2, 10, 10) and found.features.dtype == np.float32
    assert len(found) == len(found.names) == len(found.labels) == 60
    assert found.layer == "2.output" and found.skipped == ()
    assert repr(found) == (
        "<Features of 60 samples: layer 2.output, float32 (60, 2, 10, 10); labels of 2 classes>"
    )
    assert repr(list(found.names[:2])) == "['level/000.png', 'level/001.png']"
    written = cotswold.write_features(desk.stacks, desk.images, tmp_path / "f.npz", labels="folders")
    kept = np.load(written.path)
    for name in ("features", "names", "labels"):
        assert np.array_equal(kept[name], getattr(found, name)), name
    assert written.shape == found.features.shape


def test_another_layer_is_named_as_in_the_command(desk: Desk) -> None:
    found = cotswold.features(desk.stacks.path, str(desk.images), layer="1.pooled")
    assert found.features.shape[1:] == (3, 12, 12) and found.layer == "1.pooled"
    assert cotswold.features(desk.stacks, desk.images, layer=1).layer == "1.output"
    with pytest.raises(UserError, match=r"layer 7\.pooled does not exist"):
        cotswold.features(desk.stacks, desk.images, layer="7.pooled")


def test_features_are_what_the_network_answers(desk: Desk) -> None:
    found = cotswold.features(desk.stacks, desk.images)
    trained = cotswold.training.trained_stacks(desk.stacks.directory)
    source = cotswold.data.open_source(desk.images)
    maps, _ = next(iter(cotswold.data.stream(source, trained.prepared.transform, 60)))
    assert torch.equal(desk.stacks.network(maps), torch.from_numpy(found.features))


def test_a_image_that_cannot_be_read_is_named_in_the_answer_and_logged(
    desk: Desk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(desk.images, tmp_path / "images")
    (tmp_path / "images" / "level" / "000.png").write_bytes(b"no image")
    with caplog.at_level(logging.WARNING, "cotswold"):
        found = cotswold.predict(desk.layers, tmp_path / "images")
    assert len(found) == 59 and "000.png" in found.skipped[0]
    assert "left out: " in caplog.text and "000.png" in caplog.text


def test_predictions_are_probabilities_of_named_classes(desk: Desk, tmp_path: Path) -> None:
    draw_labelled(tmp_path / "new", 10, first=500)
    found = cotswold.predict(desk.layers, tmp_path / "new")
    assert found.classes == ("level", "upright")
    assert np.allclose(found.probabilities.sum(1), 1, atol=1e-5)
    head, *rows = repr(found).splitlines()
    assert head == "<Predictions of 20 samples: 2 classes (level, upright)>"
    assert rows[0] == f"  {found.names[0]}: {found.best[0]} {found.probabilities[0].max():.3f}"
    assert len(rows) == 3
    right = [name.split("/")[0] == best for name, best in zip(found.names, found.best, strict=True)]
    assert np.mean(right) > 0.9
    with pytest.raises(UserError, match=r"^threads=0 is not in"):
        cotswold.predict(desk.layers, tmp_path / "new", threads=0)
    with pytest.raises(RunError, match="use a supervised run"):
        cotswold.predict(desk.stacks, tmp_path / "new")


def test_values_of_a_wrong_kind_are_refused_in_a_sentence(desk: Desk, tmp_path: Path) -> None:
    tensor: Any = torch.zeros(2, 3, 16, 16)
    array, store = tensor.numpy(), tmp_path / "store"
    word: Any = "big"
    run: Any = 3
    half: Any = 1.5
    asks: dict[str, Callable[[], object]] = {
        "the source must be a path, not a Tensor; save": lambda: cotswold.features(desk.stacks, tensor),
        "the source must be a path, not a ndarray; save": lambda: cotswold.predict(desk.layers, array),
        "a run must be a path, not 3": lambda: cotswold.Run(run),
        "1.5 is no layer|'1.5' is not a layer": lambda: cotswold.features(desk.stacks, ".", layer=half),
        "size must be an integer, not 'big'": lambda: cotswold.prepare(".", store, size=word),
        "whiten_cutoff must be a number, not 'big'": lambda: cotswold.prepare(".", store, whiten_cutoff=word),
        "whiten must be True or False, not 'big'": lambda: cotswold.prepare(".", store, whiten=word),
        "stack must be an integer, not 'big'": lambda: desk.stacks.filters(word),
        "threads must be an integer": lambda: cotswold.predict(desk.layers, ".", threads=word),
        "is a str; give a list": lambda: cotswold.train_recipe("demo", store, overrides="a.b=3"),
    }
    for sentence, ask in asks.items():
        with pytest.raises(UserError, match=sentence):
            ask()
    assert not store.exists()


def test_an_evaluation_is_a_table_and_is_kept(desk: Desk, tmp_path: Path) -> None:
    shutil.copytree(desk.stacks.path, tmp_path / "run")
    run = cotswold.Run(tmp_path / "run")
    images: dict[str, Any] = {"positives": desk.images / "level", "negatives": desk.images / "upright"}
    table = cotswold.selectivity(run, **images, name="level", weights=0.5, layers=["2.pooled"])
    assert isinstance(table, analysis.Evaluation)
    (row,) = table.objects
    assert "level: best held out: this network" in repr(table) and len(repr(table)) < 500
    assert len(repr(row)) < 300 and len(repr(row.profiles)) < 5000 and len(repr(row.best)) < 300
    assert "<td>level</td>" in table._repr_html_()
    assert (row.name, row.guess, row.best.layer) == ("level", 0.5, "2.pooled")
    assert cotswold.selectivity(run, **images, name="level", weights=0.5, layers=["2.pooled"]) == table
    assert analysis.Evaluation.read(run.directory.evaluation) == table


def test_a_supervised_run_is_evaluated_on_its_own_images(desk: Desk) -> None:
    found = cotswold.evaluate(desk.layers)
    assert isinstance(found, analysis.Classification) and found.accuracy > 0.9
    said = f"Classification of step {found.step}: {found.accuracy:.2%} of 12 samples of validation are "
    assert repr(found).startswith(f"{said}correct") and len(repr(found)) < 300
    assert "<td>upright</td>" in found._repr_html_()
    with pytest.raises(UserError, match="omit positives"):
        cotswold.selectivity(desk.layers, positives=desk.images, negatives=desk.images)
    with pytest.raises(UserError, match="omit layers and control"):
        cotswold.selectivity(desk.layers, layers=["1.output"], control=desk.stacks)
    with pytest.raises(UserError, match=r"on labelled samples; use cotswold\.evaluate\(run\)"):
        cotswold.selectivity(desk.layers)
    with pytest.raises(UserError, match=r"trained without labels .*\(Python: cotswold\.selectivity\)"):
        cotswold.evaluate(desk.stacks)


def test_a_report_is_written_and_verification_says_what_is_damaged(desk: Desk, tmp_path: Path) -> None:
    shutil.copytree(desk.stacks.path, tmp_path / "run")
    run = cotswold.Run(tmp_path / "run")
    assert run.report() == run.path / "report.html"
    assert "<svg" in (run.path / "report.html").read_text()
    assert cotswold.verify(run).is_valid
    (run.checkpoints[-1] / "00000.safetensors").write_bytes(b"")
    found = cotswold.verify(run)
    assert not found.is_valid and "00000.safetensors" in found.findings[0]


def test_a_store_is_prepared_opened_and_verified(desk: Desk, tmp_path: Path) -> None:
    heard: list[cotswold.data.Summary] = []
    store = cotswold.prepare(
        desk.images, tmp_path / "store", size=12, labels="folders", on_summary=heard.append
    )
    assert repr(store) == (
        f"<cotswold.data.Store '{tmp_path / 'store'}': images of 3 x 12 x 12; "
        "train 57, validation 3; 2 classes>"
    )
    assert (store.shape.height, store.classes) == (12, ("level", "upright"))
    assert sum(store.splits.values()) == sum(heard[0].splits.values()) == 60
    assert cotswold.verify(tmp_path / "store").kind == "store"


def test_info_counts_without_training(desk: Desk) -> None:
    found = cotswold.info(desk.stacks_recipe, time=False)
    assert found.totals["parameters"] == 56_256 and len(found.layers) == 2
    smaller = cotswold.info(desk.stacks_recipe, time=False, overrides={"training.batch_size": 2})
    assert int(str(smaller.totals["training_bytes"])) < int(str(found.totals["training_bytes"]))


def test_what_is_looked_at_leaves_threads_and_environment_alone(desk: Desk) -> None:
    before, count = dict(os.environ), torch.get_num_threads()
    cotswold.features(desk.stacks, desk.images, threads=count + 1)
    assert dict(os.environ) == before and torch.get_num_threads() == count


def test_features_of_npy_are_listed_beside(desk: Desk, tmp_path: Path) -> None:
    cotswold.write_features(desk.stacks, desk.images, tmp_path / "f.npy")
    with (tmp_path / "f.csv").open() as table:
        assert len(list(csv.DictReader(table))) == 60


def test_a_run_that_predicts_numbers_answers_with_them_and_is_judged_by_their_errors(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 4)).astype(np.float32)
    y = (x @ random.normal(size=(4, 2))).astype(np.float32)
    np.savez(tmp_path / "sums.npz", x=x, y=y)
    recipe = tmp_path / "sums.toml"
    recipe.write_text(NUMBERS.format(source=tmp_path / "sums.npz"))
    run = cotswold.train_recipe(recipe, tmp_path / "run", stores=tmp_path / "stores")
    found = cotswold.predict(run, tmp_path / "sums.npz")
    assert found.classes == () and found.best == [] and found.probabilities.shape == (300, 2)
    assert ((found.probabilities - y) ** 2).mean() < 0.1 * y.var()
    before = run.report().read_text()
    assert "The regression errors have not been measured yet" in before
    errors = cotswold.evaluate(run)
    assert isinstance(errors, analysis.Regression) and errors.samples == 60
    judged = [float(str(event["loss"])) for event in run.events if event["kind"] == "validation"]
    assert errors.rmse == pytest.approx([error**0.5 for error in errors.squared_error])
    assert json.loads(errors.to_json())["rmse"] == pytest.approx(errors.rmse)
    assert "2 targets\n  0: RMSE" in repr(errors) and "<td>1</td>" in errors._repr_html_()
    assert repr(found).startswith("<Predictions of 300 samples: 2 numbers each>")
    source = cotswold.data.open_samples(tmp_path / "sums.npz", labels="file")
    assert repr(source) == "<VectorSource: 300 vectors of 4 features, 2 regression targets>"
    scale = cotswold.data.Store(next((tmp_path / "stores").iterdir())).target_scale
    assert scale is not None
    standard = [error / each**2 for error, each in zip(errors.squared_error, scale.deviation, strict=True)]
    assert sum(standard) == pytest.approx(min(judged), rel=1e-3)  # that of the best checkpoint
    assert all(part is not None and part > 0.9 for part in errors.explained)
    assert analysis.Regression.read(run.directory.regression) == errors and cotswold.verify(run).is_valid
    page = run.report().read_text()
    assert "Variance explained" in page
    assert '<tr><th scope="row">0</th>' in page  # counted as in `squared_error` and by the command
    for each in (before, page):
        assert "One output layer, trained for regression on 240 samples of 4 features." in each
        assert not re.search("images|pixels|spectrum|classif", each.partition("</main>")[0], re.IGNORECASE)


def test_neurons_of_vectors_are_not_tested_on_images(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(60, 4)))
    recipe = tmp_path / "vectors.toml"
    recipe.write_text(VECTOR_STACK.format(source=tmp_path / "x.npy"))
    run = cotswold.train_recipe(recipe, tmp_path / "run", stores=tmp_path / "stores")
    assert cotswold.features(run, tmp_path / "x.npy").features.shape == (60, 6, 1, 1)
    page = run.report().read_text()
    assert "trained without labels on 57 samples of 4 features." in page
    assert not re.search("selectivity|spectrum|pixels", page.partition("</main>")[0], re.IGNORECASE)
    with pytest.raises(UserError, match=r"needs images, but the network learnt from vectors"):
        cotswold.selectivity(run, positives=tmp_path / "x.npy", negatives=tmp_path / "x.npy")
