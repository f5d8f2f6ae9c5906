"""`[training]` of strategy supervised.

Knows: fields, units and defaults. Does not know: what the strategy does with them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from cotswold.recipe.schema.fields import (
    Fraction,
    NotNegative,
    Positive,
    Times,
)
from cotswold.recipe.schema.optimizers import OPTIMIZER_FIELDS, OPTIMIZERS, OptimizerName, with_defaults
from cotswold.recipe.schema.strategy import LabelledTraining, LossObjective, SteppedTraining

Betas = Annotated[
    tuple[Fraction, Fraction],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),  # TOML only has lists
]


class SupervisedTraining(SteppedTraining, LabelledTraining):
    """Layers, with labels, by a stochastic optimiser."""

    objective = LossObjective

    strategy: Literal["supervised"] = "supervised"
    """`supervised`: a stochastic optimiser through all layers."""
    optimizer: OptimizerName = "sgd"
    """The optimiser, of torch.optim. `muon` updates matrices (weights of fully connected layers) and uses
    AdamW with the same learning rate for all other parameters and for embeddings. `custom` is written by
    runs for which a Python program gives another optimiser.
    """
    learning_rate: Positive = 0.05
    """Peak learning rate. Default: 0.05 for `sgd`, 0.01 for `adagrad`, 0.002 for `nadam`, 0.001 for the
    others.
    """
    weight_decay: NotNegative = 0.0
    """Weight decay. `adamw` and `muon`: this factor times the learning rate times a weight is subtracted
    from it. The others: this factor times a weight is added to its gradient. Default: 0.01 for `adamw`, 0.1
    for `muon`, 0 for the others.
    """
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    """For `sgd`, `rmsprop` and `muon`: fraction of the last step that is kept. Default: 0.9 for `sgd`, 0
    for `rmsprop`, 0.95 for `muon`.
    """
    nesterov: bool | None = None
    """For `sgd` and `muon`: Nesterov's momentum. Default: false for `sgd`, true for `muon`."""
    betas: Betas | None = None
    """For `adam`, `adamw`, `nadam`, `radam` and `muon`: decay of the means of gradients and of their squares.
    Default: [0.9, 0.999].
    """
    alpha: Fraction | None = None
    """For `rmsprop`: decay of the mean of squared gradients. Default: 0.99."""
    eps: Positive | None = None
    """For all but `sgd`: added to the root of squared gradients. Default: 1e-10 for `adagrad`, 1e-8 for
    the others.
    """
    accumulate: Times = 1
    """Batches per update. Their gradients are averaged over samples, as for one batch of `accumulate` times
    `batch_size` samples; batch normalisation still uses each batch alone. The last update of an epoch has
    the remaining batches. Steps, schedules and validations count updates.
    """
    clip_norm: Positive | None = None
    """Largest norm of the gradient of all parameters; a larger gradient is scaled down to it. Default: no
    clipping.
    """
    precision: Literal["32", "bf16-mixed", "16-mixed"] = "32"
    """`32`: float32. `bf16-mixed` and `16-mixed`: torch.autocast computes products in bfloat16 or float16;
    weights, optimiser and losses stay in float32. `16-mixed` scales the loss, and skips an update whose
    gradient overflows. Validation, evaluation and prediction use the same precision.
    """
    compile: bool = False
    """Compile the network with torch.compile; not on a grid of ranks."""
    patience: Times | None = None
    """Stop after this many epochs without a better validation loss."""

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, values: object) -> object:
        return with_defaults(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _check_nesterov(self) -> SupervisedTraining:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0; set momentum, or remove nesterov")
        return self

    @model_serializer(mode="wrap")
    def _without_fields_of_names(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        if self.optimizer == "custom":
            values = {name: value for name, value in values.items() if name not in OPTIMIZER_FIELDS}
        return values

    @property
    def optimizer_values(self) -> dict[str, object]:
        """The fields that the optimiser has, with their values."""
        return {name: getattr(self, name) for name in OPTIMIZERS[self.optimizer].defaults}
