"""The common part of the full-batch estimators: settings, their checks, the fit.

Knows: scikit-learn's conventions, both ways to optimise. Does not know: classes, regression targets.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import nn

from cotswold.errors import outside_level
from cotswold.recipe.schema import BatchTraining
from cotswold.sklearn.gradient import Loss
from cotswold.sklearn.network import ACTIVATIONS, DTYPES, make_network, outputs_of
from cotswold.sklearn.optimise import ROWS, optimise
from cotswold.sklearn.samples import AnyArray, WeightedSamples

METHODS = ("lbfgs", "cg")


class FullBatchEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A fully connected network, trained by value and gradient over all samples."""

    network_: nn.Sequential
    n_features_in_: int
    n_iter_: int
    loss_: float
    loss_curve_: list[float]
    validation_loss_curve_: list[float]
    run_directory_: Path | None

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (100,),
        activation: Literal["identity", "logistic", "tanh", "relu"] = "relu",
        *,
        method: Literal["lbfgs", "cg"] = "lbfgs",
        alpha: float = 0.0001,
        max_iter: int = 200,
        tol: float = 1e-4,
        ftol: float = 2.2e-9,
        random_state: int | np.random.RandomState | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        workers: int = 1,
        directory: str | Path | None = None,
        dtype: Literal["float32", "float64"] = "float32",
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.method = method
        self.alpha = alpha
        self.max_iter = max_iter
        self.tol = tol
        self.ftol = ftol
        self.random_state = random_state
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.workers = workers
        self.directory = directory
        self.dtype = dtype

    def _sizes(self) -> tuple[int, ...]:
        """Return the sizes of the hidden layers; raises ValueError for settings out of range."""
        _check_name("activation", self.activation, ACTIVATIONS)
        _check_name("method", self.method, METHODS)
        _check_name("dtype", self.dtype, DTYPES)
        for name, least in (("max_iter", 1), ("n_iter_no_change", 1), ("workers", 1)):
            _check_whole(name, getattr(self, name), least)
        for name in ("alpha", "tol", "ftol"):
            _check_number(name, getattr(self, name), 0.0)
        _check_number("validation_fraction", self.validation_fraction, 0.0)
        if not 0 < self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must lie between 0 and 1, got {self.validation_fraction}")
        if self.directory is not None and not isinstance(self.directory, str | Path):
            raise ValueError(f"directory must be a path or None, got {self.directory!r}")
        given: object = self.hidden_layer_sizes
        sizes: tuple[object, ...] = (given,)
        if isinstance(given, Sequence | np.ndarray) and not isinstance(given, str):
            sizes = tuple(given)
        for size in sizes:
            _check_whole("hidden_layer_sizes", size, 1)
        return tuple(int(str(size)) for size in sizes)

    def _fit(
        self,
        inputs: AnyArray,
        targets: AnyArray,
        weights: NDArray[np.float64] | None,
        outputs: int,
        loss: Loss,
        classes: AnyArray | None = None,
    ) -> None:
        """Train a new network.

        Args:
            inputs: ``(sample, feature)``.
            targets: Classes from 0, or values ``(sample, output)``.
            weights: Weights of the samples, or None.
            outputs: Number of outputs of the network.
            loss: The mean loss over samples.
            classes: Classes for a stratified validation split; None splits at random.
        """
        sizes, random, dtype = self._sizes(), check_random_state(self.random_state), DTYPES[self.dtype]
        network = make_network((inputs.shape[1], *sizes, outputs), self.activation, dtype, random)
        samples, held = WeightedSamples.of(inputs, targets, weights, dtype), None
        total = float(len(samples)) if weights is None else float(weights.sum())
        if self.early_stopping:
            train, test = self._split(len(samples), classes, random)
            samples, held = (
                WeightedSamples(samples.inputs[rows], samples.targets[rows])
                for rows in (torch.from_numpy(train), torch.from_numpy(test))
            )
            total *= len(train) / (len(train) + len(test))
        training = BatchTraining(
            method=self.method,
            max_iterations=int(self.max_iter),
            tolerance=float(self.tol),
            loss_tolerance=float(self.ftol),
            patience=int(self.n_iter_no_change) if self.early_stopping else None,
            seed=int(random.randint(2**31 - 1)),
        )
        decay = float(self.alpha) / total
        self.run_directory_ = None
        from cotswold.api.threads import compute_threads

        with compute_threads(None):
            if self.workers == 1 and self.directory is None:
                history = optimise(network, loss, samples, held, training, decay)
            else:
                from cotswold.sklearn.run_fit import optimise_in_run

                history, self.run_directory_ = optimise_in_run(
                    network,
                    loss,
                    samples,
                    held,
                    training,
                    decay,
                    workers=int(self.workers),
                    directory=self.directory,
                )
        self.network_ = network.eval().requires_grad_(False)
        self.n_layers_, self.n_outputs_ = len(sizes) + 2, outputs
        self.n_iter_, self.loss_curve_ = len(history.losses), history.losses
        self.loss_ = history.losses[-1]
        self.validation_loss_curve_ = history.validation
        if not history.ended:
            warnings.warn(
                f"max_iter={self.max_iter} iterations were used up before the gradient fell to "
                f"tol={self.tol:g}; raise max_iter, or scale the features",
                ConvergenceWarning,
                stacklevel=outside_level("cotswold", "sklearn"),
            )

    def _split(
        self, samples: int, classes: AnyArray | None, random: np.random.RandomState
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the training and the validation rows."""
        from sklearn.model_selection import train_test_split

        found: list[NDArray[np.int64]] = train_test_split(
            np.arange(samples),
            test_size=float(self.validation_fraction),
            stratify=classes,
            random_state=random,
        )
        return found[0], found[1]

    def _checked(self, X: Any, y: Any, sample_weight: Any, **how: Any) -> tuple[Any, Any, Any]:
        """Return arrays for a fit; raises ValueError for what cannot be trained."""
        X, y = validate_data(self, X, y, dtype=np.dtype(self._dtype_name()), **how)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            if not sample_weight.sum() > 0:
                raise ValueError("sample_weight must have a sum above 0")
        return X, y, sample_weight

    def _outputs(self, X: Any) -> NDArray[np.float64]:
        """Return the outputs of the trained network ``(sample, output)``."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.dtype(self._dtype_name()), reset=False)
        dtype = next(self.network_.parameters()).dtype
        found = outputs_of(self.network_, torch.from_numpy(np.array(X)).to(dtype), ROWS)
        return found.double().numpy()

    def _dtype_name(self) -> str:
        _check_name("dtype", self.dtype, DTYPES)
        return self.dtype


def _check_name(name: str, value: object, known: Any) -> None:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def _check_whole(name: str, value: object, least: int) -> None:
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or int(str(value)) < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def _check_number(name: str, value: object, least: float) -> None:
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not is_number or not least <= float(str(value)) < float("inf"):
        raise ValueError(f"{name} must be a number of at least {least:g}, got {value!r}")
