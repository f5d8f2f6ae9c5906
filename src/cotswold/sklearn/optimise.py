"""Full-batch optimisation in this process, without a run directory.

Knows: methods, losses, early stopping. Does not know: scikit-learn, other processes, files.

A run's events and checkpoints take longer than the iterations of a small problem (3 ms an iteration), so
they are left out here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from cotswold.errors import DivergedError
from cotswold.optim import Convergence, FunctionObjective
from cotswold.optim.convergence import LossDecrease
from cotswold.recipe.schema import BatchTraining
from cotswold.sklearn.fast_vectors import FastVectors
from cotswold.sklearn.gradient import Loss, NetworkGradient
from cotswold.sklearn.network import outputs_of, weight_matrices
from cotswold.sklearn.samples import WeightedSamples
from cotswold.training.early_stopping import Patience
from cotswold.training.flat_parameters import FlatParameters
from cotswold.training.full_batch.strategy import method_of

ROWS = 4096
"""Samples that are computed together, so that memory does not grow with the number of samples."""


@dataclass
class OptimisationHistory:
    """The course of an optimisation."""

    losses: list[float] = field(default_factory=list)
    """The objective, penalty included, after each iteration."""
    validation: list[float] = field(default_factory=list)
    """The loss of the validation samples: before the first iteration, then after each."""
    ended: str = ""
    """The reason for the end; empty if the number of iterations was used up."""


def optimise(
    network: nn.Module,
    loss: Loss,
    samples: WeightedSamples,
    held: WeightedSamples | None,
    training: BatchTraining,
    decay: float,
) -> OptimisationHistory:
    """Train a network in place; with validation samples, keep the parameters of the best validation.

    The objective includes half of ``decay`` times the squares of all weights but the biases.

    Raises DivergedError if the objective is not finite.
    """
    flat = FlatParameters(network)
    vectors = FastVectors(flat.vector.clone())
    method = method_of(training, vectors, FunctionObjective(vectors, _objective(flat, loss, samples, decay)))
    convergence = Convergence(vectors.epsilon, training.convergence_patience)
    decrease = LossDecrease(training.loss_tolerance)
    stopping = Patience(training.patience)
    history, best = OptimisationHistory(), vectors["x"][0].clone()

    def validate() -> None:
        nonlocal best
        if held is None:
            return
        method.flush()
        flat.vector.copy_(vectors["x"][0])
        value = float(loss(outputs_of(network, held.inputs, ROWS), held.targets))
        history.validation.append(value)
        if stopping.update(value):
            best = vectors["x"][0].clone()

    validate()
    while not history.ended and len(history.losses) < training.max_iterations:
        found = method.step()
        history.losses.append(found.value)
        convergence.update(found)
        decrease.update(found)
        validate()
        if found.failure is not None:
            history.ended = f"no step decreases the objective: {found.failure}"
        elif float(vectors["trial_g"][0].abs().max()) <= training.tolerance:  # of the point just reached
            history.ended = "no element of the gradient exceeds tol"
        elif decrease.is_small:
            history.ended = "a step decreased the objective by at most ftol"
        elif convergence.is_converged:
            history.ended = "no measurable progress"
        elif stopping.is_exhausted:
            history.ended = stopping.reason
    method.flush()
    flat.set_grad_views(None)
    flat.vector.copy_(vectors["x"][0] if held is None else best)
    if not bool(torch.isfinite(flat.vector).all()):
        raise DivergedError("the trained weights are not finite; scale the features, or raise alpha")
    return history


def _objective(
    flat: FlatParameters, loss: Loss, samples: WeightedSamples, decay: float
) -> Callable[[Sequence[Tensor], Sequence[Tensor] | None], float]:
    """Return the mean loss with its penalty, and the gradient, as a function of the parameters' vector."""
    network, own = flat.module, torch.zeros_like(flat.vector)
    assert isinstance(network, nn.Sequential)
    objective = NetworkGradient(network, loss)
    flat.set_grad_views(own)
    penalised = weight_matrices(flat.module) if decay else []
    parts = [samples.part(start, start + ROWS) for start in range(0, len(samples), ROWS)]
    shares = [len(part) / len(samples) for part in parts]

    def evaluate(point: Sequence[Tensor], gradient: Sequence[Tensor] | None) -> float:
        flat.vector.copy_(point[0])
        own.zero_()
        total = 0.0
        for part, share in zip(parts, shares, strict=True):
            total += float(objective.add(part, share))
        for weight in penalised:
            total += 0.5 * decay * float(weight.detach().double().square().sum())
            if gradient is not None and weight.grad is not None:
                weight.grad.add_(weight.detach(), alpha=decay)
        if gradient is not None:
            gradient[0].copy_(own)
        return total

    return evaluate
