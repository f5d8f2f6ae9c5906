"""`[training]` and `[objective]`: how a network is trained and what is minimised; one class a `strategy`.

Knows: the fields of each strategy. Does not know: what a strategy does with them.

A strategy is a class with its name as the literal type of ``strategy``, listed in the union `Training`; its
objective is a class in the union `Objective`. A strategy from another package derives its section from one
of these, and joins by an entry point (`recipe.joining`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Discriminator, Field, Tag

from cotswold.recipe.schema.fields import (
    Fraction,
    NotNegative,
    Positive,
    Section,
    Seed,
    Span,
    Text,
    Threads,
    Times,
)


class StackObjective(Section):
    """Objective (1) of Coates et al. 2013."""

    sparsity: NotNegative = 0.1
    """λ of objective (1): the weight of the pooled responses against the squared error of reconstruction.
    Inputs of every stack are scaled to a root mean square of 1, so that λ means the same on every set."""
    ramp: Fraction = 0.3
    """The part of a stack's training over which λ rises to its value. Random filters under a strong λ
    would rather answer nothing; so they first learn to reconstruct."""
    epsilon: Positive = 1e-6
    """Added inside the root of pooling."""


class LossObjective(Section):
    """A loss of scores against labels."""

    loss: Literal["cross_entropy", "squared", "logistic", "custom"] = "cross_entropy"
    """`cross_entropy`: over the softmax of the scores; `squared`: squared error against 1 for the class and 0
    for the others; `logistic`: one detector a class against all others; `custom`: a function that a Python
    program gives, for `network.module`."""


class SharedTraining(Section):
    """What every strategy has."""

    objective: ClassVar[type[StackObjective] | type[LossObjective]]
    """The class of `[objective]` that belongs to the strategy."""

    strategy: str
    """How the network is trained."""
    batch_size: Times = 96
    """Samples in a mini-batch."""
    epochs: Span = 2.0
    """Passes over the training samples (for each stack where `greedy`). Given with --set it is for every
    stack, as are `relative_rate` and `sparsity`."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Part of the last step that is kept."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """How the learning rate falls from its value to 0 over the run."""
    warmup: Fraction = 0.02
    """The part of the run over which the learning rate rises from 0."""
    seed: Seed = 0
    """Seed of filters, of the order of samples and of dropout."""
    checkpoint_minutes: Span = 5.0
    """Minutes between checkpoints; one is also written at the end of every stack."""
    checkpoints_kept: Times = 2
    """How many of the newest checkpoints stay on disk."""
    threads: Threads | None = None
    """Threads of computation, of each rank where there are several; all cores that the process is granted,
    divided among the ranks of a host, by default. `--threads` stands before it."""
    device: Text = "cpu"
    """A torch device, such as `cpu` or `cuda:0`."""


class StackTraining(SharedTraining):
    """What the strategies that train stacks have."""

    objective = StackObjective

    relative_rate: Positive = 2.0
    """Learning rate in units of 1 / (α fan-in), so that one value suits every set of data and every stack;
    about 100 times what is usual for SGD."""
    offload: Literal["none", "disk"] = "none"
    """`none`: filters and momenta are in memory; `disk`: they are in files in the run's directory, and pass
    through memory once a pass, for stacks larger than memory."""


class GreedyTraining(StackTraining):
    """Stack after stack, without labels."""

    strategy: Literal["greedy"] = "greedy"
    """`greedy`: every stack is trained on the output of those below, which stay as they are."""


class JointTraining(StackTraining):
    """All stacks at once, without labels."""

    strategy: Literal["joint"] = "joint"
    """`joint`: every step is a step of every stack."""


class SupervisedTraining(SharedTraining):
    """Layers, with labels."""

    objective = LossObjective

    strategy: Literal["supervised"] = "supervised"
    """`supervised`: SGD through all layers."""
    learning_rate: Positive = 0.05
    """Learning rate of SGD."""
    weight_decay: NotNegative = 0.0
    """Weight decay: this times a weight is added to its gradient."""
    patience: Times | None = None
    """Stop after so many epochs without a better validation loss."""


Training = Annotated[GreedyTraining | JointTraining | SupervisedTraining, Field(discriminator="strategy")]
"""The union of all strategies."""
STRATEGIES: list[type[SharedTraining]] = [GreedyTraining, JointTraining, SupervisedTraining]
"""All of them; those of other packages join (`recipe.joining`)."""


class OfStrategy(dict[str, object]):
    """The values of `[objective]` with the class that the recipe's strategy has for them."""

    def __init__(self, values: dict[str, object], section: type[Section]) -> None:
        super().__init__(values)
        self.section = section


def _class_of(values: object) -> str:
    section = values.section if isinstance(values, OfStrategy) else type(values)
    return section.__name__ if issubclass(section, Section) else StackObjective.__name__


Objective = Annotated[
    Annotated[StackObjective, Tag("StackObjective")] | Annotated[LossObjective, Tag("LossObjective")],
    Discriminator(_class_of),
]
"""The union of what strategies minimise; the strategy says which."""


def strategy_of(training: object) -> type[SharedTraining] | None:
    """The class of a `[training]`, as values or read already; None where its strategy is none."""
    if isinstance(training, SharedTraining):
        return type(training)
    name = training.get("strategy") if isinstance(training, dict) else None
    return next((each for each in STRATEGIES if name in names_of(each)), None)


def names_of(strategy: type[SharedTraining]) -> tuple[object, ...]:
    """The name of a strategy, as `strategy` takes it."""
    return get_args(strategy.model_fields["strategy"].annotation)
