"""The full-batch estimators keep scikit-learn's conventions, with and without a run."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits, make_classification
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from cotswold.sklearn import FullBatchClassifier, FullBatchRegressor

ESTIMATORS = [
    estimator(max_iter=100, dtype=dtype)
    for estimator in (FullBatchClassifier, FullBatchRegressor)
    for dtype in ("float64", "float32")
]
ROUNDING = "float32 rounds by more than the check's tolerance of 1e-7; float64 passes"
REASONS = {
    "check_sample_weight_equivalence_on_dense_data": ROUNDING,
}
SUBSETS = {"check_methods_subset_invariance": ROUNDING}
"""Fails for the regressor alone: rounding of probabilities is below the tolerance."""


def expected(estimator: Any) -> dict[str, str]:
    """Checks that fail for an estimator, with the reason; none in float64."""
    if estimator.dtype == "float64":
        return {}
    return REASONS | (SUBSETS if isinstance(estimator, FullBatchRegressor) else {})


@pytest.fixture(autouse=True)
def _few_iterations() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected)
def test_the_checks_of_scikit_learn_pass(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks themselves warn
        try:
            check(estimator)
        except SkipTest as skipped:  # a check of arrays of other libraries, which the estimators do not take
            if "SCIPY_ARRAY_API" not in str(skipped):
                raise


@pytest.fixture(scope="module")
def digits() -> tuple[Any, Any, Any, Any]:
    X, y = load_digits(return_X_y=True)
    return X[:1200] / 16, y[:1200], X[1200:] / 16, y[1200:]


def test_accuracy_on_digits_is_that_of_mlpclassifier(digits: tuple[Any, Any, Any, Any]) -> None:
    X, y, X_test, y_test = digits
    ours = [
        FullBatchClassifier((50,), random_state=seed).fit(X, y).score(X_test, y_test) for seed in range(3)
    ]
    theirs = [
        MLPClassifier((50,), solver="lbfgs", random_state=seed).fit(X, y).score(X_test, y_test)
        for seed in range(3)
    ]
    assert np.mean(ours) > np.mean(theirs) - 0.01
    assert min(ours) > 0.88


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("activation", ["relu", "logistic"])
@pytest.mark.parametrize("alpha", [0.0, 3.0])
def test_a_fit_takes_the_steps_of_scikit_learn(classes: int, activation: Any, alpha: float) -> None:
    X, y = make_classification(300, 8, n_informative=5, n_classes=classes, random_state=0)
    settings: Any = {
        "hidden_layer_sizes": (6, 5),
        "activation": activation,
        "max_iter": 12,
        "random_state": 3,
    }
    ours = FullBatchClassifier(dtype="float64", alpha=alpha, **settings).fit(X, y)
    theirs = MLPClassifier(solver="lbfgs", alpha=alpha, **settings).fit(X, y)
    assert ours.loss_ == pytest.approx(theirs.loss_, rel=1e-6)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-4)
    assert ours.n_iter_ == theirs.n_iter_


def test_alpha_penalises_as_documented() -> None:
    X, y = make_classification(300, 8, n_informative=5, n_classes=3, random_state=0)
    ours = FullBatchClassifier((), alpha=1.0, tol=1e-6, dtype="float64", max_iter=1000).fit(X, y)
    weights = ours.network_.state_dict()
    likely = ours.predict_proba(X)
    penalty = float(weights["0.weight"].square().sum())
    loss = -np.log(likely[np.arange(300), y]).mean() + 0.5 * penalty / 300
    assert ours.loss_ == pytest.approx(loss, rel=1e-9)
    gradient = (likely - np.eye(3)[y]).T @ X / 300 + weights["0.weight"].numpy() / 300
    assert np.abs(gradient).max() < 5e-5  # the last step decreased the loss by at most ftol


@pytest.mark.parametrize("workers", [1, 2])
def test_a_larger_ftol_ends_a_fit_earlier(workers: int) -> None:
    X, y = load_diabetes(return_X_y=True)
    settings: Any = {"random_state": 0, "tol": 0.0, "dtype": "float64", "max_iter": 500, "workers": workers}
    early = FullBatchRegressor((5,), ftol=1e-3, **settings).fit(20 * X, y)
    steps = -np.diff(early.loss_curve_) / np.maximum(1, early.loss_curve_[1:])
    assert 3 < early.n_iter_ < 100 and steps[-1] <= 1e-3 < steps[:-1].min()


def test_workers_penalise_weights_alike_and_validation_has_no_penalty() -> None:
    X, y = make_classification(200, 8, random_state=0)
    weights = np.linspace(0.5, 2, 200)
    settings: Any = {"random_state": 0, "dtype": "float64", "alpha": 20.0, "max_iter": 8}
    for early in (False, True):
        one, two = (
            FullBatchClassifier((4,), workers=workers, early_stopping=early, **settings).fit(X, y, weights)
            for workers in (1, 2)
        )
        np.testing.assert_allclose(two.loss_curve_, one.loss_curve_, rtol=1e-8)
        np.testing.assert_allclose(two.validation_loss_curve_, one.validation_loss_curve_, rtol=1e-8)
        assert type(two.network_) is torch.nn.Sequential


def test_a_small_fit_takes_well_under_a_second() -> None:
    X, y = make_classification(1000, 20, n_informative=10, random_state=0)
    FullBatchClassifier(random_state=0).fit(X[:100], y[:100])  # the first one imports
    began = time.process_time()
    FullBatchClassifier(random_state=0).fit(X, y)
    assert time.process_time() - began < 1.0


def test_workers_train_to_the_same_loss_and_leave_no_directory(
    digits: tuple[Any, Any, Any, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    X, y, X_test, y_test = digits
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    settings: Any = {"random_state": 0, "max_iter": 30, "dtype": "float64"}
    one = FullBatchClassifier((10,), **settings).fit(X[:400], y[:400])
    two = FullBatchClassifier((10,), workers=2, **settings).fit(X[:400], y[:400])
    assert two.loss_ == pytest.approx(one.loss_, rel=1e-3)
    np.testing.assert_allclose(two.loss_curve_[:5], one.loss_curve_[:5], rtol=1e-6)
    assert two.score(X_test, y_test) == pytest.approx(one.score(X_test, y_test), abs=0.03)
    assert two.n_iter_ == one.n_iter_ == 30
    assert not list(tmp_path.glob("cotswold-*"))
    assert two.run_directory_ is None


@pytest.mark.parametrize("estimator", [FullBatchClassifier, FullBatchRegressor])
def test_a_directory_keeps_a_run_of_each_fit(estimator: Any, tmp_path: Path) -> None:
    import cotswold

    X, y = make_classification(60, 5, random_state=0)
    weights = np.linspace(0.5, 2, 60)
    model = estimator((4,), max_iter=5, directory=tmp_path / "runs", random_state=0)
    here = clone(model).set_params(directory=None).fit(X, y, weights)
    kept = [clone(model).fit(X, y, weights), clone(model).fit(X, y, weights)]
    assert len({each.run_directory_ for each in kept}) == 2
    for each in kept:
        assert cotswold.Run(each.run_directory_).status == "finished"
        np.testing.assert_allclose(each.loss_curve_, here.loss_curve_, rtol=1e-5)
        assert each.n_iter_ == here.n_iter_


def test_a_kept_run_reports_no_accuracy_that_counts_the_penalty_as_a_class(tmp_path: Path) -> None:
    import cotswold

    X, y = make_classification(90, 5, n_informative=4, n_redundant=0, n_classes=3, random_state=0)
    model = FullBatchClassifier((4,), max_iter=3, alpha=1e3, early_stopping=True, directory=tmp_path / "runs")
    with pytest.warns(ConvergenceWarning):
        model.fit(X, y)
    assert model.run_directory_ is not None
    found = [each for each in cotswold.Run(model.run_directory_).events if each["kind"] == "validation"]
    assert found and not any("accuracy" in each for each in found)


def test_conjugate_gradient_decreases_the_loss_too() -> None:
    X, y = load_diabetes(return_X_y=True)
    model = FullBatchRegressor((10,), "tanh", method="cg", random_state=0, max_iter=50).fit(X, y)
    assert model.loss_ < 0.3 < model.loss_curve_[0]
    assert model.score(X, y) > 0.4


def test_early_stopping_keeps_the_best_validation(digits: tuple[Any, Any, Any, Any]) -> None:
    X, y, _, _ = digits
    model = FullBatchClassifier(
        (30,), early_stopping=True, n_iter_no_change=3, validation_fraction=0.3, random_state=0
    ).fit(X[:300], y[:300])
    losses = model.validation_loss_curve_
    assert len(losses) == model.n_iter_ + 1 < 200
    assert losses.index(min(losses)) == len(losses) - 4
    in_run = clone(model).set_params(workers=2).fit(X[:300], y[:300])
    assert min(in_run.validation_loss_curve_) == pytest.approx(min(losses), rel=0.05)


def test_early_stopping_returns_the_weights_of_the_best_validation() -> None:
    X, y = make_classification(200, 20, flip_y=0.4, random_state=0)
    settings: Any = {"random_state": 0, "early_stopping": True, "dtype": "float64", "n_iter_no_change": 5}
    model = FullBatchClassifier((30,), **settings).fit(X, y)
    best = int(np.argmin(model.validation_loss_curve_))
    shorter = FullBatchClassifier((30,), max_iter=best, **settings).fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), shorter.predict_proba(X))


def test_a_weight_of_two_is_a_repeated_sample() -> None:
    X, y = load_diabetes(return_X_y=True)
    X, y = X[:60], y[:60]
    weights = np.ones(60)
    weights[:20] = 2
    settings: Any = {"random_state": 0, "dtype": "float64", "tol": 1e-7, "max_iter": 2000, "alpha": 1.0}
    weighted = FullBatchRegressor((), **settings).fit(X, y, weights)
    repeated = FullBatchRegressor((), **settings).fit(
        np.concatenate([X, X[:20]]), np.concatenate([y, y[:20]])
    )
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-5)
    assert not np.allclose(weighted.predict(X), FullBatchRegressor((), **settings).fit(X, y).predict(X))


def test_a_fit_in_a_directory_leaves_the_random_state_of_torch(tmp_path: Path) -> None:
    X, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    before = torch.get_rng_state()
    FullBatchClassifier((2,), max_iter=2, random_state=0, directory=tmp_path / "runs").fit(X, y)
    assert torch.equal(torch.get_rng_state(), before)


def test_names_classes_and_pickles_survive(digits: tuple[Any, Any, Any, Any], tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    X, y, _, _ = digits
    frame = pandas.DataFrame(X[:200, :10], columns=[f"pixel {number}" for number in range(10)])
    labels = np.array(["even", "odd"])[y[:200] % 2]
    model = FullBatchClassifier((5,), max_iter=20, random_state=0, directory=tmp_path / "runs")
    model.fit(frame, labels)
    assert model.feature_names_in_[0] == "pixel 0"
    assert model.classes_.tolist() == ["even", "odd"]
    assert set(model.predict(frame)) <= {"even", "odd"}
    copy = pickle.loads(pickle.dumps(model))
    import shutil

    shutil.rmtree(tmp_path / "runs")
    np.testing.assert_array_equal(copy.predict_proba(frame), model.predict_proba(frame))


def test_a_grid_search_over_a_pipeline_finds_a_setting() -> None:
    X, y = make_classification(200, 6, random_state=0)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), FullBatchClassifier(random_state=0, max_iter=30)),
        {
            "fullbatchclassifier__hidden_layer_sizes": [(3,), (5, 4)],
            "fullbatchclassifier__alpha": [1e-4, 1.0],
        },
        cv=2,
    ).fit(X, y)
    assert search.best_score_ > 0.8
    assert search.best_params_["fullbatchclassifier__alpha"] in (1e-4, 1.0)


def test_several_targets_are_predicted_in_their_own_units() -> None:
    X = np.random.default_rng(0).normal(size=(200, 3))
    y = np.stack([1e4 * X[:, 0], 1e-3 * X[:, 1] + 5], 1)
    model = FullBatchRegressor((), random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict(X), y, rtol=1e-2, atol=1.0)
    assert model.score(X, y) > 0.999


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes must be a whole number of at least 1, got 0"),
        ({"hidden_layer_sizes": "10"}, "hidden_layer_sizes must be a whole number of at least 1, got '10'"),
        ({"directory": 3}, "directory must be a path or None, got 3"),
        ({"activation": "gelu"}, "activation must be one of identity, logistic, tanh, relu, got 'gelu'"),
        ({"method": "adam"}, "method must be one of lbfgs, cg"),
        ({"alpha": -1}, "alpha must be a number of at least 0"),
        ({"tol": "small"}, "tol must be a number of at least 0"),
        ({"max_iter": 0}, "max_iter must be a whole number of at least 1"),
        ({"workers": True}, "workers must be a whole number of at least 1, got True"),
        ({"validation_fraction": 1.5}, "validation_fraction must lie between 0 and 1"),
        ({"dtype": "float16"}, "dtype must be one of float32, float64"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], words: str) -> None:
    X, y = make_classification(20, 4, random_state=0)
    with pytest.raises(ValueError, match=words):
        FullBatchClassifier(**settings).fit(X, y)


def test_weights_that_sum_to_zero_are_refused() -> None:
    X, y = make_classification(20, 4, random_state=0)
    with pytest.raises(ValueError, match=r"sum above 0|non-zero"):
        FullBatchClassifier().fit(X, y, np.zeros(20))
    with pytest.raises(NotFittedError):
        FullBatchClassifier().predict(X)


def test_used_up_iterations_warn() -> None:
    X, y = make_classification(50, 4, random_state=0)
    with pytest.warns(ConvergenceWarning, match="raise max_iter") as warned:
        FullBatchClassifier(max_iter=1).fit(X, y)
    assert warned[0].filename == __file__


def test_threads_and_random_numbers_of_the_program_stay() -> None:
    X, y = make_classification(50, 4, random_state=0)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    FullBatchClassifier(max_iter=3).fit(X, y)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_importing_the_package_does_not_import_scikit_learn() -> None:
    program = (
        "import sys, cotswold.sklearn; assert 'sklearn' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_missing_scikit_learn_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['sklearn'] = None\n"
        "from cotswold.errors import MissingExtraError\n"
        "import cotswold.sklearn\n"
        "try:\n    cotswold.sklearn.FullBatchClassifier\n"
        "except MissingExtraError as error:\n    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "pip install '.[sklearn]'" in said
