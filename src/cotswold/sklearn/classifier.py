"""The classifier.

Knows: scikit-learn's conventions for classifiers. Does not know: networks, methods.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch.nn import functional

from cotswold.sklearn.base import FullBatchEstimator
from cotswold.sklearn.gradient import Loss
from cotswold.sklearn.samples import AnyArray, logistic, weighted_cross_entropy, weighted_logistic


class FullBatchClassifier(ClassifierMixin, FullBatchEstimator):  # type: ignore[misc]  # no types
    """A fully connected classifier, trained by L-BFGS or conjugate gradient.

    Its outputs are a softmax, or one logistic output for two classes. The same `random_state` gives the same
    initial weights as scikit-learn.

    Settings have the names of `sklearn.neural_network.MLPClassifier`, where that has them. Fitted attributes:
    `classes_`, `network_` (a `torch.nn.Sequential`), `n_iter_`, `loss_`, `loss_curve_`,
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

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> FullBatchClassifier((10,), random_state=0).fit(X, y).score(X, y) > 0.9
    True
    """

    classes_: AnyArray

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train a new network.

        Args:
            X: Samples ``(sample, feature)``.
            y: Classes ``(sample,)``: numbers or strings.
            sample_weight: Weights of the samples ``(sample,)``. [all alike]

        Returns:
            This estimator.

        Raises:
            ValueError: Data or settings that cannot be used.
        """
        X, y, weights = self._checked(X, y, sample_weight)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        losses: tuple[Loss, Loss] = (
            (logistic, weighted_logistic)
            if len(self.classes_) == 2
            else (functional.cross_entropy, weighted_cross_entropy)
        )
        outputs = 1 if len(self.classes_) == 2 else len(self.classes_)
        self._fit(X, numbers, weights, outputs, losses[weights is not None], classes=numbers)
        return self

    def predict(self, X: Any) -> AnyArray:
        """Return the most likely class of each sample ``(sample,)``.

        Args:
            X: Samples ``(sample, feature)``.
        """
        numbers = self._scores(X).argmax(1)  # checks that the estimator is fitted
        found: AnyArray = self.classes_[numbers]
        return found

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each class ``(sample, class)``, in the order of `classes_`.

        Args:
            X: Samples ``(sample, feature)``.
        """
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the logarithm of `predict_proba`, never below that of the smallest normal float64.

        Args:
            X: Samples ``(sample, feature)``.
        """
        scores = self._scores(X)
        scores -= scores.max(1, keepdims=True)
        scores -= np.log(np.exp(scores).sum(1, keepdims=True))
        found: NDArray[np.float64] = np.maximum(scores, np.log(np.finfo(np.float64).tiny))
        return found

    def _scores(self, X: Any) -> NDArray[np.float64]:
        """Return a score of each class ``(sample, class)``; the one output of two classes is the second."""
        found = self._outputs(X)
        return np.pad(found, ((0, 0), (1, 0))) if len(self.classes_) == 2 else found
