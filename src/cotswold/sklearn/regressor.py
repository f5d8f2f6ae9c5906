"""The regressor.

Knows: scikit-learn's conventions for regressors. Does not know: networks, methods.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import column_or_1d

from cotswold.sklearn.base import FullBatchEstimator
from cotswold.sklearn.samples import half_squared_error, weighted_half_squared_error


class FullBatchRegressor(RegressorMixin, FullBatchEstimator):  # type: ignore[misc]  # no types
    """A fully connected network for regression, trained by L-BFGS or conjugate gradient.

    It standardises the targets for training, and predicts in their own unit. Settings have the names of
    `sklearn.neural_network.MLPRegressor`, where that has them. Fitted attributes: `network_` (a
    `torch.nn.Sequential`), `target_mean_` and `target_scale_`, `n_iter_`, `loss_`, `loss_curve_`,
    `validation_loss_curve_`, `n_features_in_`, `feature_names_in_`, `run_directory_`.

    Args:
        hidden_layer_sizes: Units of each hidden layer; an empty tuple trains a linear model.
        activation: Activation of the hidden layers.
        method: `lbfgs`, limited-memory BFGS, or `cg`, nonlinear conjugate gradient.
        alpha: Penalty: half of this times the sum of squared weights, divided by the number of samples. As in
            scikit-learn, biases are not penalised.
        max_iter: Largest number of iterations.
        tol: Stop if no element of the gradient is larger than this. With `workers` or `directory`: if the
            norm of the gradient is at most this, which takes a few iterations more.
        ftol: Stop if an iteration decreases the loss by at most this, relative to the loss or to 1, whichever
            is larger; the default is that of `MLPClassifier(solver="lbfgs")`. 0 turns it off.
        random_state: Seed of the initial weights and of the validation split.
        early_stopping: Hold samples out, stop after `n_iter_no_change` iterations without a better validation
            loss, and keep the weights of the best one.
        validation_fraction: Fraction of the samples to hold out for `early_stopping`.
        n_iter_no_change: See `early_stopping`.
        workers: Number of processes. One computes in this process.
        directory: Keep the run of each fit in a new folder inside this one. [no run is kept]
        dtype: Precision of the computation.

    >>> X = np.linspace(-1, 1, 50).reshape(-1, 1)
    >>> y = 100 * X[:, 0] ** 2
    >>> FullBatchRegressor((10,), "tanh", random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train a new network.

        Args:
            X: Samples ``(sample, feature)``.
            y: Targets ``(sample,)`` or ``(sample, output)``.
            sample_weight: Weights of the samples ``(sample,)``. [all alike]

        Returns:
            This estimator.

        Raises:
            ValueError: Data or settings that cannot be used.
        """
        X, y, weights = self._checked(X, y, sample_weight, multi_output=True, y_numeric=True)
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        self._is_flat = y.ndim == 1
        values = np.asarray(y, np.float64).reshape(len(y), -1)
        self.target_mean_ = np.average(values, 0, weights)
        scale = np.sqrt(np.average((values - self.target_mean_) ** 2, 0, weights))
        self.target_scale_ = np.where(scale > 0, scale, 1.0)
        values = (values - self.target_mean_) / self.target_scale_
        loss = half_squared_error if weights is None else weighted_half_squared_error
        self._fit(X, values, weights, values.shape[1], loss)
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return predictions ``(sample,)`` or ``(sample, output)``, in the unit of the targets.

        Args:
            X: Samples ``(sample, feature)``.
        """
        outputs = self._outputs(X)  # checks that the estimator is fitted
        found: NDArray[np.float64] = outputs * self.target_scale_ + self.target_mean_
        return found[:, 0] if self._is_flat else found
