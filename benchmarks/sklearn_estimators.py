"""Compare `cotswold.sklearn` with scikit-learn's MLPClassifier and MLPRegressor on the same work.

    python benchmarks/sklearn_estimators.py [--rounds 7] [--workers 1 2] [--threads 1] [--seeds 3]
        [--problem NAME] [--out benchmarks/results]

Both minimise the same loss from the same initial weights by L-BFGS, with the same bounds on iterations and
gradient. Fits are timed in turn, round after round, after one fit that does not count. Prints
medians of seconds, the ratio round by round, and means of iterations, loss and score on held-out samples over
the seeds. Targets of regressions are standardised for both. Writes sklearn-estimators.json.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotswold.bench.measure import Spread, document, interleaved, ratios, rounded, threads_in_children

RIVAL = "scikit-learn"


@dataclass(frozen=True)
class Problem:
    """Samples for training and for the score, and the hidden layers of the network."""

    name: str
    kind: str
    """`classifier` or `regressor`."""
    train: tuple[NDArray[Any], NDArray[Any]]
    test: tuple[NDArray[Any], NDArray[Any]]
    hidden: tuple[int, ...]


def problems() -> dict[str, Callable[[], Problem]]:
    """Return the problems by name; each is made when it is needed."""
    return {
        "digits": digits,
        "small": partial(synthetic, "small", 1000, 20, (100,)),
        "bank-like": bank_like,
        "large": partial(synthetic, "large", 20000, 100, (200, 100)),
        "diabetes": diabetes,
    }


def digits() -> Problem:
    """Return the 8 x 8 digits of scikit-learn."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return _split("digits", "classifier", X / 16, y, (100,))


def synthetic(name: str, samples: int, features: int, hidden: tuple[int, ...]) -> Problem:
    """Return classes in clusters, some of them mislabelled."""
    from sklearn.datasets import make_classification

    X, y = make_classification(
        samples, features, n_informative=features // 2, n_classes=3, flip_y=0.05, random_state=0
    )
    return _split(name, "classifier", X, y, hidden)


def bank_like() -> Problem:
    """Return a table like that of a bank's calls: numbers and one-hot categories, few positives."""
    random = np.random.default_rng(0)
    numbers = random.normal(size=(8000, 7))
    categories = [np.eye(size)[random.integers(0, size, 8000)] for size in (12, 4, 4, 3, 12, 4)]
    X = np.concatenate([numbers, *categories], 1)
    hidden = np.tanh(X @ random.normal(size=(X.shape[1], 8)) / 3) @ random.normal(size=8)
    y = (hidden + 0.5 * random.normal(size=8000) > np.quantile(hidden, 0.88)).astype(np.int64)
    return _split("bank-like", "classifier", X, y, (50,))


def diabetes() -> Problem:
    """Return the diabetes regression of scikit-learn, standardised."""
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    return _split("diabetes", "regressor", X / X.std(0), (y - y.mean()) / y.std(), (50,))


def _split(name: str, kind: str, X: NDArray[Any], y: NDArray[Any], hidden: tuple[int, ...]) -> Problem:
    from sklearn.model_selection import train_test_split

    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.25, random_state=0)
    return Problem(name, kind, (X_train, y_train), (X_test, y_test), hidden)


def estimators(problem: Problem, workers: Sequence[int], max_iter: int, seed: int) -> dict[str, Any]:
    """Return the rival and ours: of each precision in one process, and with more workers."""
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    from cotswold.sklearn import FullBatchClassifier, FullBatchRegressor

    classifies = problem.kind == "classifier"
    theirs, ours = (MLPClassifier, FullBatchClassifier) if classifies else (MLPRegressor, FullBatchRegressor)
    settings: dict[str, Any] = {"max_iter": max_iter, "random_state": seed}
    found = {
        RIVAL: theirs(hidden_layer_sizes=problem.hidden, solver="lbfgs", max_fun=10 * max_iter, **settings)
    }
    for number in workers:
        for dtype in ("float32", "float64") if number == 1 else ("float32",):
            name = f"{number} worker{'s' * (number > 1)}, {dtype}"
            found[name] = ours(problem.hidden, workers=number, dtype=dtype, **settings)
    return found


def measured(
    problem: Problem, workers: Sequence[int], rounds: int, seeds: int, max_iter: int
) -> list[dict[str, object]]:
    """Return a row for each estimator."""
    X, y = problem.train
    quality: dict[str, list[tuple[float, float, float]]] = {}
    for seed in range(seeds):
        for name, each in estimators(problem, workers, max_iter, seed).items():
            each.fit(X, y)
            row = float(each.n_iter_), float(each.loss_), float(each.score(*problem.test))
            quality.setdefault(name, []).append(row)
    fits = {name: partial(each.fit, X, y) for name, each in estimators(problem, workers, max_iter, 0).items()}
    seconds = interleaved(fits, rounds)
    return [
        {
            "problem": problem.name,
            "samples": len(X),
            "features": X.shape[1],
            "hidden": list(problem.hidden),
            "estimator": name,
            "seconds": Spread.from_samples(seconds[name]).as_dict(),
            "speedup": ratios(seconds[RIVAL], seconds[name]).as_dict(),
            "iterations": rounded(mean(each[0] for each in rows)),
            "loss": rounded(mean(each[1] for each in rows)),
            "score": rounded(mean(each[2] for each in rows)),
        }
        for name, rows in quality.items()
    ]


def line_of(row: dict[str, Any]) -> str:
    """Return a row as a line of the table."""
    return (
        f"{row['problem']:10}{row['estimator']:20}{row['seconds']['median']:9.3f}{row['speedup']['median']:9.2f}"
        f"{row['iterations']:11.0f}{row['loss']:12.4g}{row['score']:9.4f}"
    )


def main() -> None:
    """Measure, print a table, keep the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--threads", type=int, default=1, help="threads of each process")
    parser.add_argument("--max-iter", type=int, default=200)
    parser.add_argument(
        "--problem", action="append", choices=list(problems()), help="may be given again [all]"
    )
    parser.add_argument("--out", type=Path, help="directory for sklearn-estimators.json")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # both warn if the iterations are used up
    rows: list[dict[str, object]] = []
    print(
        f"{'problem':10}{'estimator':20}{'seconds':>9}{'speedup':>9}{'iterations':>11}{'loss':>12}{'score':>9}"
    )
    with threads_in_children(given.threads):
        from threadpoolctl import threadpool_limits

        with threadpool_limits(given.threads):
            for name in given.problem or problems():
                problem = problems()[name]()
                for row in measured(problem, given.workers, given.rounds, given.seeds, given.max_iter):
                    print(line_of(row), flush=True)
                    rows.append(row)
    if given.out is not None:
        words = f"python benchmarks/sklearn_estimators.py --rounds {given.rounds} --threads {given.threads}"
        kept = document("sklearn-estimators", words, threads=given.threads, rows=rows)
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "sklearn-estimators.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
