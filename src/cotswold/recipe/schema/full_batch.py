"""`[training]` of strategy batch.

Knows: fields, units and defaults. Does not know: what the strategy does with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from cotswold.recipe.bounds import hidden_maximum
from cotswold.recipe.schema.fields import (
    NotNegative,
    Positive,
    Times,
)
from cotswold.recipe.schema.strategy import LabelledTraining, LossObjective


class BatchTraining(LabelledTraining):
    """Layers, with labels, by value and gradient over the whole training set."""

    objective = LossObjective
    refused: ClassVar[Mapping[str, str]] = {
        "optimizer": "strategy batch has methods of its own: set training.method",
        "precision": "sums over the whole training set need float32: remove it",
    }

    strategy: Literal["batch"] = "batch"
    """`batch`: conjugate gradient or L-BFGS on the whole training set, in one process or on the workers of
    a cluster (Aberdeen et al. 2000; Dean et al. 2012, section 4.2).
    """
    method: Literal["lbfgs", "cg"] = "lbfgs"
    """`lbfgs`: limited-memory BFGS; `cg`: nonlinear conjugate gradient."""
    beta: Literal["polak-ribiere", "hestenes-stiefel", "dai-yuan", "hager-zhang"] | None = None
    """For `cg`: formula of β, the factor of the last direction. Default: `polak-ribiere`, cut off at 0
    (PR+).
    """
    line_search: Literal["wolfe", "approximate", "bunyip"] = "wolfe"
    """The line search. `wolfe`: strong Wolfe conditions, and approximate ones if float32 rounding hides
    the changes of the objective. `approximate`: always approximate Wolfe conditions. `bunyip`, for `cg`:
    exponential steps, a bracket by the sign of the directional derivative, quadratic interpolation.
    """
    history_size: Annotated[int, Field(gt=0), hidden_maximum(1000)] | None = None
    """For `lbfgs`: number of past steps and gradient changes to keep. Default: 10."""
    max_iterations: Times = 100
    """Stop after this many iterations; an iteration is one direction and its line search."""
    max_evaluations: Times | None = None
    """Stop after this many evaluations of value and gradient; the current iteration is finished first."""
    max_flops: Positive | None = None
    """Stop after this many FLOPs of values and gradients, as the run's account counts them (1e15 is a
    PFLOP); the current iteration is finished first.
    """
    tolerance: NotNegative = 0.0
    """Stop if the norm of the gradient is at most this."""
    loss_tolerance: NotNegative = 0.0
    """Stop if an iteration decreases the loss by at most this, relative to the loss or to 1, whichever is
    larger (`ftol` of SciPy's L-BFGS). The decrease that the slopes predict counts too, because float32
    hides small ones. 0 turns it off. It needs evaluations of all samples.
    """
    convergence_patience: Annotated[int, Field(ge=0), hidden_maximum(1_000_000)] = 10
    """Stop as converged after this many iterations in a row without progress: the value fell by no more
    than its rounding, the slopes along the steps predict no more, and the gradient norm was never smaller
    than before. 0 turns it off. It does not apply if evaluations may end before all samples are evaluated
    (`sample_fraction`, `deadline_factor`).
    """
    weight_decay: NotNegative = 0.0
    """λ: the mean loss includes ½ λ times the square of every trained weight, biases included. For n
    training samples this is C = 1 / (λ n) of scikit-learn, which excludes intercepts. The training loss of
    an iteration includes the penalty; the validation loss does not.
    """
    portion_size: Times = 320
    """Samples per portion, the unit of work: a worker checks for new commands after each portion."""
    sample_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the portions after which an evaluation ends (Aberdeen et al. 2000, section 6.2: 0.8).
    Evaluations that are compared use the same samples; see `cycle_iterations`.
    """
    deadline_factor: Positive | None = None
    """On a cluster: an evaluation that chooses its samples ends after this many times its usual duration,
    with the samples evaluated by then.
    """
    cycle_iterations: Times | None = None
    """Iterations that use the same samples, if `sample_fraction` is below 1 or `deadline_factor` is set.
    Default: 5.
    """
    deterministic: bool = False
    """Sum portions along a fixed tree, so that the gradient has the same bits on any number of workers."""
    validate_every: Times = 1
    """Iterations between validations."""
    patience: Times | None = None
    """Stop after this many validations without a better validation loss."""

    @property
    def chooses(self) -> bool:
        """True if an evaluation may end before all samples are evaluated."""
        return self.sample_fraction < 1 or self.deadline_factor is not None

    @property
    def batch_size(self) -> int:
        """Samples that are read together."""
        return self.portion_size

    @model_validator(mode="after")
    def _check_method(self) -> BatchTraining:
        if self.method == "lbfgs":
            if self.line_search == "bunyip":
                raise ValueError(
                    'line_search "bunyip" is for method "cg"; set line_search to wolfe or approximate'
                )
            if self.beta is not None:
                raise ValueError('beta is for method "cg"; remove it, or set method to cg')
        elif self.history_size is not None:
            raise ValueError('history_size is for method "lbfgs"; remove it, or set method to lbfgs')
        if self.loss_tolerance and self.chooses:
            raise ValueError(
                "loss_tolerance compares losses over the same samples; remove it, or remove sample_fraction "
                "and deadline_factor"
            )
        if self.cycle_iterations is not None and not self.chooses:
            raise ValueError(
                "cycle_iterations needs a sample_fraction below 1; remove it, or set sample_fraction"
            )
        return self
