"""Features of greedy stacks for arrays of images."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from cotswold.errors import RecipeError
from cotswold.sklearn import StackFeatures

STACK: dict[str, Any] = {
    "kernel_size": 4, "stride": 2, "block": 2, "channels": 4, "pool": 1, "norm": 3, "pool_padding": "same",
}  # fmt: skip


@pytest.fixture(scope="module")
def digits() -> tuple[Any, Any]:
    X, y = load_digits(return_X_y=True)
    return X[:600], y[:600]


@pytest.fixture(scope="module")
def fitted(digits: tuple[Any, Any]) -> StackFeatures:
    return StackFeatures([STACK], shape=(8, 8), epochs=3, random_state=0).fit(digits[0])


def test_features_are_better_than_pixels_for_a_linear_classifier(
    digits: tuple[Any, Any], fitted: StackFeatures
) -> None:
    X, y = digits
    features = fitted.transform(X)
    assert features.shape == (600, 144) and features.dtype == np.float32

    def score(values: Any) -> float:
        return float(
            LogisticRegression(max_iter=1000).fit(values[:400], y[:400]).score(values[400:], y[400:])
        )

    assert score(features) > score(X / 16)
    assert fitted.n_features_in_ == 64
    assert len(fitted.get_feature_names_out()) == 144


def test_every_layout_of_the_same_images_gives_the_same_features(
    digits: tuple[Any, Any], fitted: StackFeatures
) -> None:
    rows = digits[0][:7]
    expected = fitted.transform(rows)
    for form in ((7, 8, 8), (7, 8, 8, 1), (7, 1, 8, 8)):
        np.testing.assert_array_equal(fitted.transform(rows.reshape(form)), expected)


def test_training_is_repeatable_and_pickles_keep_the_features(
    digits: tuple[Any, Any], fitted: StackFeatures
) -> None:
    X = digits[0]
    again = clone(fitted).fit(X)
    np.testing.assert_array_equal(again.transform(X), fitted.transform(X))
    copy = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copy.transform(X), fitted.transform(X))
    other = clone(fitted).set_params(random_state=1).fit(X)
    assert not np.array_equal(other.transform(X), fitted.transform(X))


def test_two_stacks_in_colour_with_a_chosen_layer_keep_their_run(tmp_path: Path) -> None:
    import cotswold

    images = np.random.default_rng(0).integers(0, 256, (40, 3, 12, 12), dtype=np.uint8)
    model = StackFeatures(
        [STACK, {**STACK, "kernel_size": 3, "stride": 1, "block": 1}],
        epochs=1, batch_size=20, layer="1.pooled", directory=tmp_path, random_state=0,
    )  # fmt: skip
    features = model.fit_transform(images)
    assert model.run_directory_ is not None
    run = cotswold.Run(model.run_directory_)
    assert run.status == "finished" and run.path.parent == tmp_path
    assert len(run.recipe.network.stacks) == 2
    np.testing.assert_array_equal(features, model.transform(np.moveaxis(images, 1, -1)))
    model.set_params(layer="2.output")
    assert model.transform(images).shape[1] != features.shape[1]


def test_no_directory_is_left(
    digits: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    StackFeatures([STACK], shape=(8, 8), epochs=0.5, random_state=0).fit(digits[0][:100])
    assert list(tmp_path.iterdir()) == []


def test_a_pipeline_classifies_rows(digits: tuple[Any, Any]) -> None:
    X, y = digits
    model = make_pipeline(
        StackFeatures([STACK], shape=(8, 8), epochs=1, random_state=0), LogisticRegression(max_iter=1000)
    )
    assert model.fit(X[:300], y[:300]).score(X[300:], y[300:]) > 0.8


@pytest.mark.parametrize(
    ("images", "shape", "words"),
    [
        (np.zeros((3, 64)), None, r"rows need the shape of their images: StackFeatures\(shape="),
        (np.zeros((3, 64)), (8, 9), r"rows of 64 values do not fit shape=\(8, 9\), which has 72"),
        (np.zeros((3, 8, 8, 2)), None, "with 1 or 3 channels; got"),
        (np.zeros((0, 8, 8)), None, "has no images"),
        (np.full((3, 8, 8), np.nan), None, "NaN or infinity"),
        (np.array([["a"]]), None, "images must be numbers"),
        (np.zeros(5), None, "images must have shape"),
    ],
)
def test_arrays_that_are_no_images_are_refused(images: Any, shape: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        StackFeatures(shape=shape).fit(images)


def test_images_of_another_size_are_refused(fitted: StackFeatures) -> None:
    with pytest.raises(ValueError, match="have 9 x 9 pixels of 1 channel, but the fit had 8 x 8 pixels"):
        fitted.transform(np.zeros((2, 9, 9)))


def test_a_stack_that_does_not_fit_says_so(digits: tuple[Any, Any]) -> None:
    with pytest.raises(RecipeError, match="a receptive field 20 high does not fit a map 8 high"):
        StackFeatures([{**STACK, "kernel_size": 20}], shape=(8, 8)).fit(digits[0])
