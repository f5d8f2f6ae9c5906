"""Recipes of vectors and of frames: their stores, and runs on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.training.runs import finish, resumed, started

import cotswold
from cotswold import recipe as recipes
from cotswold.analysis import Regression
from cotswold.data import VectorPreparation
from cotswold.errors import RecipeError, SourceError
from cotswold.run import read_events
from cotswold.training import Resume, labelled_batches, open_job, trained_layers
from cotswold.training.data.indexed import StoreSamples
from cotswold.training.data.store_batches import TrainBatches
from cotswold.training.data.stores import class_count, open_store, preparation_of, warnings, with_store_shape

RECIPE = """
format = 1
name = "tiny"
data = {{ {data}, validation = 0.2 }}
[[network.layers]]
type = "linear"
features = 8
[[network.layers]]
type = "tanh"
[objective]
loss = "{loss}"
[training]
strategy = "supervised"
epochs = {epochs}
batch_size = 16
learning_rate = 0.1
threads = 1
"""


def text(data: str, loss: str = "cross_entropy", epochs: int = 3) -> str:
    return RECIPE.format(data=data, loss=loss, epochs=epochs)


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    """Write 200 vectors of two classes, far apart in the second of three features."""
    random, y = np.random.default_rng(0), np.arange(200) % 2
    x = random.normal(size=(200, 3))
    x[:, 1] += 6 * y
    np.savez(tmp_path / "blobs.npz", x=x * 100 + 1000, y=np.array(["low", "high"])[y])
    return tmp_path / "blobs.npz"


@pytest.fixture
def speech(tmp_path: Path) -> Path:
    for number in range(12):
        folder = tmp_path / "speech" / ("yes" if number % 2 else "no")
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{number}.npy", np.random.default_rng(number).normal(number % 2, 0.3, (20, 4)))
    return tmp_path / "speech"


def accuracy(run: Any) -> float:
    found = [float(str(e["accuracy"])) for e in read_events(run.events) if e.get("kind") == "validation"]
    return found[-1]


def test_a_run_on_vectors_learns_and_is_resumed_with_features_that_the_source_knows(
    blobs: Path, tmp_path: Path
) -> None:
    recipe = text(f'type = "vectors", source = "{blobs}", labels = "file"')
    run = finish(started(recipe, tmp_path / "run", tmp_path / "stores"))
    assert accuracy(run) > 0.9
    assert recipes.load(run.recipe).input.channels == 3
    longer = tmp_path / "longer.toml"
    longer.write_text(recipe.replace("epochs = 3", "epochs = 4"))
    job = open_job(longer, run.path, stores=tmp_path / "stores", resume=Resume.ALWAYS)
    assert job.resumed
    assert resumed(run.path, tmp_path / "stores").store.classes == ("high", "low")


def test_a_run_on_frames_reads_them_with_their_context(speech: Path, tmp_path: Path) -> None:
    recipe = text(f'type = "frames", source = "{speech}", labels = "folders", context = 2')
    job = started(recipe, tmp_path / "run", tmp_path / "stores")
    assert job.recipe.input.channels == 20 and job.store.splits == {"train": 200, "validation": 40}
    assert accuracy(finish(job)) > 0.9


def test_a_recipe_of_a_store_takes_features_and_context_from_it(speech: Path, tmp_path: Path) -> None:
    recipe = recipes.parse(
        text(f'type = "frames", source = "{speech}", labels = "folders", context = 3'), "it"
    )
    made = open_store(recipe, tmp_path / "stores")
    again = recipes.parse(text(f'type = "frames", store = "{made.path}"'), "it")
    assert with_store_shape(again, open_store(again, tmp_path)).input.channels == 7 * 4
    images = recipes.parse(text(f'store = "{made.path}"'), "it")
    with pytest.raises(RecipeError, match=r'type is "images", but .* holds frames; set data.type'):
        with_store_shape(images, made)


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_who_needs_labels_is_not_told_to_do_without(name: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(50, 3))
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    recipe = recipes.parse(text(f'type = "vectors", source = "{tmp_path / name}", labels = "file"'), "it")
    with pytest.raises(SourceError, match=r"has no label") as raised:
        open_store(recipe, tmp_path / "stores")
    assert "none" not in str(raised.value)
    assert str(raised.value).endswith(("add the file", "name one of them y or labels"))


def test_the_preparation_says_what_the_recipe_says(blobs: Path) -> None:
    recipe = text(
        f'type = "vectors", source = "{blobs}", labels = "file", standardise = false, dtype = "float16"'
    )
    data = recipes.parse(recipe, "it").data
    assert preparation_of(data) == VectorPreparation(3, standardise=False, dtype="float16")
    wrong = recipes.parse(text(f'type = "vectors", source = "{blobs}", labels = "file", features = 5'), "it")
    with pytest.raises(RecipeError, match=r"features is 5, but .* has 3 per vector"):
        preparation_of(wrong.data)


def test_numbers_to_predict_are_outputs_and_want_the_squared_loss(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(50, 3))
    np.savez(tmp_path / "r.npz", x=x, y=x[:, :2])
    data = f'type = "vectors", source = "{tmp_path / "r.npz"}", labels = "file"'
    recipe = recipes.parse(text(data, "squared_error"), "it")
    assert class_count(recipe) == 2
    store = open_store(recipe, tmp_path / "stores")
    assert with_store_shape(recipe, store).input.channels == 3
    with pytest.raises(RecipeError, match='loss = "cross_entropy" needs classes: set it to "squared_error"'):
        with_store_shape(recipes.parse(text(data), "it"), store)


def test_numbers_to_predict_are_validated_as_the_floats_that_they_are(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))
    np.savez(tmp_path / "r.npz", x=x, y=0.5 + x[:, :2] / 10)
    data = f'type = "vectors", source = "{tmp_path / "r.npz"}", labels = "file"'
    job = started(text(data, "squared_error"), tmp_path / "run", tmp_path / "stores")
    (batch,) = labelled_batches(job.store, job.recipe, "validation")
    assert batch[1].shape == (12, 2) and batch[1].dtype == torch.float32
    assert torch.equal(batch[1], torch.from_numpy(job.store.labels("validation")))
    run = finish(job)
    trained = trained_layers(run)  # with as many outputs as numbers, from the checkpoint alone
    assert trained.network(torch.zeros(2, 3, 1, 1)).shape == (2, 2)
    assert trained.prepared.targets == 2 and trained.prepared.classes == ()


def prices(folder: Path) -> Path:
    """Write 200 houses: five features of one scale and one of a million, prices of 300,000, and a
    constant.
    """
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 6)) * [1, 1, 1, 1, 1, 1e6]
    price = 3e5 + 5e4 * x[:, 0] + 2e-2 * x[:, 5]
    np.savez(folder / "houses.npz", x=x, y=np.stack([price, np.full(200, 7.0)], 1))
    return folder / "houses.npz"


def test_prices_are_learnt_by_the_rate_of_any_table_and_predicted_as_prices(tmp_path: Path) -> None:
    data = f'type = "vectors", source = "{prices(tmp_path)}", labels = "file"'
    job = started(text(data, "squared_error", epochs=20), tmp_path / "run", tmp_path / "stores")
    assert any("regression targets are standardised" in note for note in job.store.notes)
    assert any("constant over all training samples (from 0): 1;" in note for note in job.store.notes)
    assert torch.from_numpy(job.store.labels("train"))[:, 0].mean() > 2e5
    run = finish(job)
    found = cotswold.predict(run.path, prices(tmp_path), progress=False).probabilities
    wanted = np.load(tmp_path / "houses.npz")["y"]
    assert np.abs(found[:, 0] - wanted[:, 0]).mean() < 1.5e4 and np.abs(found[:, 1] - 7).max() < 0.5
    errors = cotswold.evaluate(run.path, stores=tmp_path / "stores", progress=False)
    assert isinstance(errors, Regression) and errors.explained[0] is not None
    assert errors.explained[0] > 0.9 and 1e6 < errors.squared_error[0] < 4e8


def test_targets_are_learnt_as_they_are_where_samples_are_not_standardised(tmp_path: Path) -> None:
    data = f'type = "vectors", source = "{prices(tmp_path)}", labels = "file", standardise = false'
    store = open_store(recipes.parse(text(data, "squared_error"), "it"), tmp_path / "stores")
    labels = torch.from_numpy(store.labels("train"))
    assert store.target_scale is None and store.learnable(labels) is labels


def test_every_way_to_samples_standardises_their_targets(tmp_path: Path) -> None:
    data = f'type = "vectors", source = "{prices(tmp_path)}", labels = "file"'
    recipe = recipes.parse(text(data, "squared_error"), "it")
    store = open_store(recipe, tmp_path / "stores")
    by_number = StoreSamples(store, "train").batch(range(160)).targets
    first = next(iter(TrainBatches(store, 160, 0, "cpu"))).targets
    for each in (by_number, first):
        assert each is not None and abs(float(each[:, 0].mean())) < 1e-4
        assert abs(float(each[:, 0].std(correction=0)) - 1) < 1e-4 and not each[:, 1].any()


def test_an_output_that_cannot_give_standardised_targets_is_refused(tmp_path: Path) -> None:
    data = f'type = "vectors", source = "{prices(tmp_path)}", labels = "file"'
    store = open_store(recipes.parse(text(data, "squared_error"), "it"), tmp_path / "stores")
    tanh = text(data, "squared_error").replace("[objective]", "[network]\noutput = 'tanh'\n[objective]")
    with pytest.raises(RecipeError, match=r'output = "tanh" cannot reach .* data\.standardise to false'):
        with_store_shape(recipes.parse(tanh, "it"), store)


@pytest.mark.parametrize(("labels", "is_said"), [(np.arange(60) * 6 + 25, True), (np.arange(60) % 3, False)])
def test_whole_numbers_that_are_hardly_classes_are_said_to_be_taken_for_them(
    labels: np.ndarray[Any, Any], is_said: bool, tmp_path: Path
) -> None:
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(60, 2)), labels=labels)
    (tmp_path / "recipe.toml").write_text(
        f'name = "x"\ndata = {{ type = "vectors", source = "{tmp_path / "x.npz"}", labels = "file" }}\n'
        'network = { layers = [] }\nobjective = { loss = "squared_error" }\n'
        'training = { strategy = "supervised" }\n'
    )
    recipe = recipes.load(tmp_path / "recipe.toml")
    said = " ".join(warnings(recipe, open_store(recipe, tmp_path / "stores")))
    assert ("for regression save them as floats" in said) == is_said
