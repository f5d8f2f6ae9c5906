"""Objectives, and the fields that all strategies share.

Knows: fields, units and defaults. Does not know: what a strategy does with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from cotswold.recipe.schema.fields import (
    Fraction,
    NotNegative,
    Positive,
    Section,
    Seed,
    Span,
    Text,
    Texts,
    Threads,
    Times,
)

AUTO = "auto"
"""The device of a run that takes the fastest of its machine."""


class StackObjective(Section):
    """Objective (1) of Coates et al. 2013: reconstruction error and sparsity."""

    sparsity: NotNegative = 0.1
    """λ of objective (1): weight of the pooled responses relative to the squared reconstruction error. The
    inputs of every stack are scaled to a root mean square of 1, so λ means the same for every data set.
    """
    sparsity_ramp: Fraction = 0.3
    """Fraction of a stack's training over which λ rises to its value. With random filters and a large λ
    the responses collapse to zero, so the stack learns to reconstruct first.
    """
    epsilon: Positive = 1e-6
    """Added inside the square root of pooling."""


class LossObjective(Section):
    """A loss of outputs against labels."""

    loss: Literal["cross_entropy", "squared_error", "bce_with_logits", "custom"] = "cross_entropy"
    """`cross_entropy`: over the softmax of the outputs. `squared_error`: float labels are
    regression targets; for classes the target is `target_high` for the class and `target_low` for the
    others. `bce_with_logits`: one detector per class against all others. `custom`: a function from a
    Python program, for `network.module`.
    """
    target_low: float = 0.0
    """For `squared_error` and classes: target of all outputs except the class's. Use -1 for a network that
    ends in tanh.
    """
    target_high: float = 1.0
    """For `squared_error` and classes: target of the class's output."""

    @model_validator(mode="after")
    def _in_order(self) -> LossObjective:
        if not self.target_low < self.target_high:
            raise ValueError(
                "target_low must be below target_high, got "
                f"target_low = {self.target_low:g} and target_high = {self.target_high:g}"
            )
        if self.loss != "squared_error" and (self.target_low, self.target_high) != (0.0, 1.0):
            raise ValueError(
                f'target_low and target_high are for loss "squared_error", not for "{self.loss}"; remove them'
            )
        return self


class SharedTraining(Section):
    """Settings of every strategy."""

    objective: ClassVar[type[StackObjective] | type[LossObjective]]
    """Class of `[objective]` that belongs to the strategy."""

    refused: ClassVar[Mapping[str, str]] = {}
    """Fields of strategy supervised that users expect here, with the reason why they do not exist."""

    strategy: str
    """The training strategy."""
    seed: Seed = 0
    """Seed of the initial filters, the sample order and dropout."""
    checkpoint_minutes: Span = 5.0
    """Minutes between checkpoints; the end of every stack writes one too. The first follows after 15
    seconds; each later one after as long as the run had trained before, up to this interval.
    """
    checkpoints_kept: Times = 2
    """Number of checkpoints to keep; older ones are deleted."""
    threads: Threads | None = None
    """Compute threads per rank. Default: all cores granted to the process, divided among the ranks of a
    host. `--threads` overrides it.
    """
    device: Text = "cpu"
    """A torch device, such as `cpu` or `cuda:0`, or `auto`: CUDA or MPS if this machine has it and the
    strategy can use it, otherwise the CPU. The run keeps the device that it found.
    """
    loggers: Texts | None = None
    """Loggers of the run's curves: `tensorboard`, `csv`, `wandb`, `mlflow`, or an installed package's.
    Default: `tensorboard`, if it is installed.
    """


class LabelledTraining(SharedTraining):
    """Settings of the strategies that train with labels."""

    metrics: Texts = Field(default_factory=list)
    """Metrics on the validation samples, besides the loss: `top5` (any k), `macro_f1`, `macro_precision`,
    `macro_recall`, `auroc`, `mae`, `rmse`, `r2`, `accuracy`. Classes always have their accuracy.
    """


class SteppedTraining(SharedTraining):
    """Settings of the strategies that take one step per mini-batch."""

    batch_size: Times = 96
    """Samples per mini-batch. An epoch has as many whole mini-batches as the samples fill; others are left
    out of that epoch.
    """
    epochs: Span = 2.0
    """Passes over the training samples (for each stack with `greedy`). If given with --set, it applies to
    every stack, as do `relative_rate` and `sparsity`.
    """
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """Decay of the learning rate over the run; `linear` and `cosine` fall to 0."""
    warmup: Fraction = 0.02
    """Fraction of the run over which the learning rate rises from 0."""
