"""`[training]` and `[objective]`: how to train, and the function to minimise; one class per `strategy`.

Knows: the fields of each strategy. Does not know: what a strategy does with them.

A strategy is a class with its name as the literal type of ``strategy``, listed in the union `Training`; its
objective is a class in the union `Objective`. A strategy of another package derives its section from one of
these classes and registers by an entry point (`recipe.plugins`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Discriminator, Field, Tag, model_validator

from cotswold.recipe.bounds import at_most, items
from cotswold.recipe.schema.fields import (
    Fraction,
    NotNegative,
    Passes,
    Positive,
    Section,
    Seed,
    Span,
    Text,
    Threads,
    Times,
)


class StackObjective(Section):
    """Objective (1) of Coates et al. 2013: reconstruction error and sparsity."""

    sparsity: NotNegative = 0.1
    """λ of objective (1): weight of the pooled responses relative to the squared reconstruction error. The
    inputs of every stack are scaled to a root mean square of 1, so λ means the same for every data set.
    """
    ramp: Fraction = 0.3
    """Fraction of a stack's training over which λ rises to its value. With random filters and a large λ
    the responses collapse to zero, so the stack learns to reconstruct first.
    """
    epsilon: Positive = 1e-6
    """Added inside the square root of pooling."""


class LossObjective(Section):
    """A loss of outputs against labels."""

    loss: Literal["cross_entropy", "squared", "logistic", "custom"] = "cross_entropy"
    """`cross_entropy`: over the softmax of the outputs. `squared`: the squared error, of regression
    targets if the labels are floats; for classes the target is `high` for the class and `low` for the
    others. `logistic`: one detector per class against all others. `custom`: a function from a Python
    program, for `network.module`.
    """
    low: float = 0.0
    """For `squared` and classes: target of all outputs except the class's. Use -1 for a network that ends
    in tanh.
    """
    high: float = 1.0
    """For `squared` and classes: target of the class's output."""

    @model_validator(mode="after")
    def _in_order(self) -> LossObjective:
        if not self.low < self.high:
            raise ValueError(f"low must be below high, got low = {self.low:g} and high = {self.high:g}")
        if self.loss != "squared" and (self.low, self.high) != (0.0, 1.0):
            raise ValueError(f'low and high are for loss "squared", not for "{self.loss}"; remove them')
        return self


class SharedTraining(Section):
    """Settings of every strategy."""

    objective: ClassVar[type[StackObjective] | type[LossObjective]]
    """Class of `[objective]` that belongs to the strategy."""

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
    """A torch device, such as `cpu` or `cuda:0`."""


class SteppedTraining(SharedTraining):
    """Settings of the strategies that take one step per mini-batch."""

    batch_size: Times = 96
    """Samples per mini-batch."""
    epochs: Span = 2.0
    """Passes over the training samples (for each stack with `greedy`). If given with --set, it applies to
    every stack, as do `relative_rate` and `sparsity`.
    """
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Fraction of the last step that is kept."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """Decay of the learning rate over the run; `linear` and `cosine` fall to 0."""
    warmup: Fraction = 0.02
    """Fraction of the run over which the learning rate rises from 0."""


class StackTraining(SteppedTraining):
    """Settings of the strategies that train stacks."""

    objective = StackObjective

    relative_rate: Positive = 2.0
    """Learning rate in units of 1 / (α fan-in), so that one value suits every data set and stack; about
    100 times the usual value for SGD.
    """
    offload: Literal["none", "disk"] = "none"
    """`none`: filters and momenta are in memory; `disk`: they are in files in the run directory and pass
    through memory once per pass over the data, for stacks larger than memory.
    """


class GreedyTraining(StackTraining):
    """One stack after another, without labels."""

    strategy: Literal["greedy"] = "greedy"
    """`greedy`: train each stack on the output of the stacks below, which stay fixed."""


class JointTraining(StackTraining):
    """All stacks at once, without labels."""

    strategy: Literal["joint"] = "joint"
    """`joint`: every step updates every stack."""


class SupervisedTraining(SteppedTraining):
    """Layers, with labels, by stochastic gradient descent."""

    objective = LossObjective

    strategy: Literal["supervised"] = "supervised"
    """`supervised`: SGD through all layers."""
    learning_rate: Positive = 0.05
    """Peak learning rate of SGD."""
    weight_decay: NotNegative = 0.0
    """Weight decay: this factor times a weight is added to its gradient."""
    patience: Times | None = None
    """Stop after this many epochs without a better validation loss."""


class BatchTraining(SharedTraining):
    """Layers, with labels, by value and gradient over the whole training set."""

    objective = LossObjective

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
    search: Literal["wolfe", "approximate", "bunyip"] = "wolfe"
    """The line search. `wolfe`: strong Wolfe conditions, and approximate ones if float32 rounding hides
    the changes of the objective. `approximate`: always approximate Wolfe conditions. `bunyip`, for `cg`:
    exponential steps, a bracket by the sign of the directional derivative, quadratic interpolation.
    """
    memory: Annotated[int, Field(gt=0), at_most(1000)] | None = None
    """For `lbfgs`: number of past steps and gradient changes to keep. Default: 10."""
    iterations: Times = 100
    """Stop after this many iterations; an iteration is one direction and its line search."""
    evaluations: Times | None = None
    """Stop after this many evaluations of value and gradient; the current iteration is finished first."""
    flops: Positive | None = None
    """Stop after this many FLOPs of values and gradients, as the run's account counts them (1e15 is a
    PFLOP); the current iteration is finished first.
    """
    tolerance: NotNegative = 0.0
    """Stop if the norm of the gradient is at most this."""
    stall_iterations: Annotated[int, Field(ge=0), at_most(1_000_000)] = 10
    """Stop as converged after this many iterations in a row without progress: the value fell by no more
    than its rounding, the slopes along the steps predict no more, and the gradient norm was never smaller
    than before. 0 turns it off. It does not apply if evaluations may end before all samples are evaluated
    (`fraction`, `deadline`).
    """
    weight_decay: NotNegative = 0.0
    """λ: the mean loss includes ½ λ times the square of every trained weight, biases included. For n
    training samples this is C = 1 / (λ n) of scikit-learn, which excludes intercepts. The training loss of
    an iteration includes the penalty; the validation loss does not.
    """
    portion: Times = 320
    """Samples per portion, the unit of work: a worker checks for new commands after each portion."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the portions after which an evaluation ends (Aberdeen et al. 2000, section 6.2: 0.8).
    Evaluations that are compared use the same samples; see `cycle`.
    """
    deadline: Positive | None = None
    """On a cluster: an evaluation that chooses its samples ends after this many times its usual duration,
    with the samples evaluated by then.
    """
    cycle: Times | None = None
    """Iterations that use the same samples, if `fraction` is below 1 or `deadline` is set. Default: 5."""
    deterministic: bool = False
    """Sum portions along a fixed tree, so that the gradient has the same bits on any number of workers."""
    validate_every: Times = 1
    """Iterations between validations."""
    patience: Times | None = None
    """Stop after this many validations without a better validation loss."""

    @property
    def chooses(self) -> bool:
        """True if an evaluation may end before all samples are evaluated."""
        return self.fraction < 1 or self.deadline is not None

    @property
    def batch_size(self) -> int:
        """Samples that are read together."""
        return self.portion

    @model_validator(mode="after")
    def _of_the_method(self) -> BatchTraining:
        if self.method == "lbfgs":
            if self.search == "bunyip":
                raise ValueError('search "bunyip" is for method "cg"; set search to wolfe or approximate')
            if self.beta is not None:
                raise ValueError('beta is for method "cg"; remove it, or set method to cg')
        elif self.memory is not None:
            raise ValueError('memory is for method "lbfgs"; remove it, or set method to lbfgs')
        if self.cycle is not None and not self.chooses:
            raise ValueError("cycle needs a fraction below 1; remove cycle, or set fraction")
        return self


LayerNumber = Annotated[int, Field(gt=0), at_most(1000)]
"""Number of a layer of the recipe, from 1."""


class DownpourTraining(SharedTraining):
    """Layers, with labels, by replicas that do not wait for each other."""

    objective = LossObjective

    strategy: Literal["downpour"] = "downpour"
    """`downpour`: replicas (`cluster.workers` processes) push gradients to parameter servers, which apply
    them on arrival, and pull parameters (Dean et al. 2012, section 4.1). Batch normalisation is not
    supported, because replicas would have different means. Each replica draws its own dropout.
    """
    batch_size: Times = 96
    """Samples per mini-batch."""
    epochs: Passes = 10
    """Passes over the training samples, summed over all replicas."""
    learning_rate: Positive = 0.05
    """Peak learning rate on the servers; with rule `deltas`, that of the replicas' local steps."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Decay of the learning rate over the run; `linear` and `cosine` fall to 0. No process counts the
    steps of all replicas, so the rate follows samples. Positions of samples over all epochs are assigned
    in order, and the rate of a push is that of its first sample's position. Skipped samples count as
    trained; samples of a lost replica are trained later at the rate of their position.
    """
    warmup: Fraction = 0.0
    """Fraction of the run over which the learning rate rises from 0, by sample positions."""
    weight_decay: NotNegative = 0.0
    """Weight decay: this factor times a weight, biases included, is added to its gradient in each step.
    The replica adds it to the gradients that it pushes, with the parameters that it pulled. For gradients
    sent as factors, the server adds it, with its current parameters.
    """
    clip: Positive | None = None
    """Largest norm of a mini-batch's gradient; the replica scales a larger gradient down to it, before
    weight decay and before gradients are summed. Default: no clipping.
    """
    rule: Literal["sgd", "momentum", "adagrad", "deltas"] = "sgd"
    """Update rule of the servers. `sgd`: a step against the gradient. `momentum`: adds a fraction of the
    last step. `adagrad`: a learning rate per weight, divided by the root of the sum of squared gradients;
    all replicas share the sum. `deltas`: replicas take local SGD steps, push their change over
    `push_every` steps, and servers add the changes (Chilimbi et al. 2014, section 3.3; Hogwild). Adagrad
    does not combine with deltas: squares of summed steps are not squares of gradients.
    """
    momentum: Annotated[float, Field(gt=0, lt=1)] | None = None
    """For `momentum`: fraction of the last step that is kept. Default: 0.9. Every push of each of n
    replicas is a step, so momentum decays n times as fast.
    """
    fetch_every: Times = 1
    """Steps of a replica between two pulls; `between` sets the parameters used in the meantime."""
    between: Literal["plain", "none"] | None = None
    """Change of a replica's local parameters between two pulls, if `fetch_every` is above 1. `plain`: a
    local SGD step, w - rate · gradient, after each gradient, until the next pull replaces the parameters,
    as the client of Dean et al. 2012 does. `none`: the parameters stay fixed. Default: `plain` with rules
    `sgd` and `momentum`, because the servers move in the same direction; `none` with `adagrad`, whose
    learning rate does not suit plain steps, and with `send` or `send_factors` for factors, because the
    replica then has no gradient. The same holds for several `cluster.processes` between two pulls. Rule
    `deltas` always takes local steps.
    """
    push_every: Times = 1
    """Steps of a replica that are summed into one push: gradients, or local steps with rule `deltas`."""
    send: Literal["auto", "gradient", "factors"] = "auto"
    """Format of pushed gradients of fully connected and local layers. `gradient`: M · N numbers for M
    inputs and N outputs. `factors`: activations and error terms, k (M · S + N) numbers for k samples per
    push if the layer's rows lie on S servers, which multiply them (Chilimbi et al. 2014, section 3.3).
    `auto`: factors if they are fewer numbers; never with local steps of the replica (`between`, rule
    `deltas`), and never for a layer whose input is the samples themselves, or the samples after layers
    without weights. For such a layer the factors contain the samples: with `factors` they are sent to the
    servers. All other tensors are sent as gradients. Factors are summed in another order than on the
    replica, so the gradients differ by rounding.
    """
    send_factors: Annotated[list[LayerNumber], items(1000)] = Field(default_factory=list)
    """Numbers of layers, from 1, whose weights are always sent as factors, even if their input is the
    samples; the output layer follows the last of [[network.layers]].
    """
    send_gradient: Annotated[list[LayerNumber], items(1000)] = Field(default_factory=list)
    """Numbers of layers, from 1, whose weights are always sent as gradients."""
    unit_norm: bool = False
    """Normalise filters to norm 1, initially and on the server after each update. A filter is the weights
    of one output in fully connected layers and convolutions, of one neuron in local layers. The output
    layer and biases are not normalised.
    """
    staleness: Annotated[int, Field(ge=0), at_most(1_000_000)] | None = None
    """Largest staleness: updates that a shard may have applied between the pull that an update was
    computed from and that update. Default: no bound. With 0, a single replica gives the same bits as
    ordinary SGD.
    """
    stale: Literal["wait", "scale", "drop"] | None = None
    """Policy for updates beyond `staleness`. `wait` (default): updates of fast replicas wait for those of
    slow ones, and a replica does not compute during its own push or pull. `scale`: an update of staleness
    s is multiplied by `staleness` / s. `drop`: the update is discarded, and its samples count as refused.
    """
    epoch_fraction: Annotated[float, Field(gt=0, le=1)] = 0.75
    """Fraction of `epoch_of` after which an epoch ends (Chilimbi et al. 2014: 75 % of the replicas)."""
    epoch_of: Literal["replicas", "samples"] = "replicas"
    """Condition that ends an epoch. `replicas`: all samples are assigned, and `epoch_fraction` of the
    replicas have finished theirs. `samples`: `epoch_fraction` of the samples are done; samples not
    assigned by then are skipped and counted.
    """
    warm_start: Annotated[int, Field(ge=0), at_most(1_000_000_000_000)] = 0
    """Number of samples that a single replica trains on first, while the others wait."""
    patience: Times | None = None
    """Stop after this many validations without a better loss; one validation follows each epoch, unless
    the previous one is still running.
    """
    device: Text = "cpu"
    """Device of replicas and of the evaluator: `cpu`; `cuda`, the CUDA devices of this machine in turn; or
    a device such as `cuda:0`. With CUDA a replica is one process of this machine, so `cluster.processes`,
    `mesh.grid` and `cluster.address` are not possible. Parameter servers stay in CPU memory.
    """
    shard_kilobytes: Annotated[int, Field(gt=0), at_most(1_000_000)] = 1024
    """Approximate size of a shard in kilobytes; it holds whole rows. Each shard is updated and pulled
    separately.
    """
    record_traffic: bool = False
    """Record the traffic of each server in the folder `traffic` of the run, for `cotswold bench server
    --trace`: time, replica, kinds, shards and numbers of samples, no contents. After a resume only the
    newest part is kept.
    """

    factored_layers: ClassVar[tuple[str, ...]] = ("linear", "local")
    """Types of layers whose gradients can be pushed as factors."""

    @property
    def own_steps(self) -> Literal["none", "plain", "pushed"]:
        """Local steps of replicas, and whether a push consists of them."""
        if self.rule == "deltas":
            return "pushed"
        if self.between is not None:
            return self.between
        plain = self.fetch_every > 1 and self.rule != "adagrad" and not self.wants_factors
        return "plain" if plain else "none"

    def sent(self, number: int) -> Literal["auto", "gradient", "factors"]:
        """Return the push format of a layer's weights; ``number`` counts layers from 1."""
        if self.own_steps != "none" or number in self.send_gradient:
            return "gradient"
        return "factors" if number in self.send_factors else self.send

    @property
    def wants_factors(self) -> bool:
        """True if some layers must be sent as factors, even if these are more numbers."""
        return self.send == "factors" or bool(self.send_factors)

    @model_validator(mode="after")
    def _steps(self) -> DownpourTraining:
        if self.rule == "deltas" and self.between is not None:
            raise ValueError('rule "deltas" pushes local steps of the replicas; remove between')
        if self.between == "plain" and self.rule == "adagrad":
            raise ValueError(
                'rule "adagrad" divides its learning rate by the root of summed squares, which only servers '
                'have, so replicas cannot take plain steps; set between to "none"'
            )
        if self.wants_factors and self.own_steps != "none":
            raise ValueError(
                "a replica that takes local steps needs whole gradients and cannot push factors; "
                + ('set rule to "sgd"' if self.rule == "deltas" else 'set between to "none"')
                + ', or remove "factors"'
            )
        both = sorted(set(self.send_factors) & set(self.send_gradient))
        if both:
            raise ValueError(f"layer {both[0]} is in both send_factors and send_gradient; remove it from one")
        return self

    @model_validator(mode="after")
    def _belongs_together(self) -> DownpourTraining:
        if self.momentum is not None and self.rule != "momentum":
            raise ValueError('momentum is for rule "momentum"; remove it, or set rule to momentum')
        if self.stale is not None and self.staleness is None:
            raise ValueError("stale needs a bound; set staleness, or remove stale")
        if self.stale == "scale" and self.staleness == 0:
            raise ValueError(
                'stale "scale" needs a staleness of at least 1, because it multiplies updates by it'
            )
        if self.staleness == 0 and (self.fetch_every, self.push_every) != (1, 1):
            raise ValueError(
                "a staleness of 0 needs the newest parameters at each step; set fetch_every and "
                "push_every to 1"
            )
        waits = self.staleness is not None and self.stale in (None, "wait")
        if waits and self.fetch_every > self.push_every:
            raise ValueError(
                'stale "wait" needs the parameters from which each push is computed; set fetch_every to '
                "push_every or less"
            )
        return self


LayerTraining = SupervisedTraining | BatchTraining | DownpourTraining
"""Strategies that train layers, or a Python module."""
Training = Annotated[
    GreedyTraining | JointTraining | SupervisedTraining | BatchTraining | DownpourTraining,
    Field(discriminator="strategy"),
]
"""Union of all strategies."""
STRATEGIES: list[type[SharedTraining]] = [
    GreedyTraining,
    JointTraining,
    SupervisedTraining,
    BatchTraining,
    DownpourTraining,
]
"""All strategies; other packages register theirs (`recipe.plugins`)."""


class OfStrategy(dict[str, object]):
    """Values of `[objective]`, with the class that the recipe's strategy needs."""

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
"""Union of the objectives; the strategy determines which one."""


def strategy_of(training: object) -> type[SharedTraining] | None:
    """Return the class of a `[training]`, given as values or validated; None if the strategy is unknown."""
    if isinstance(training, SharedTraining):
        return type(training)
    name = training.get("strategy") if isinstance(training, dict) else None
    return next((each for each in STRATEGIES if name in names_of(each)), None)


def names_of(strategy: type[SharedTraining]) -> tuple[object, ...]:
    """Return the names that `strategy` accepts for a class."""
    return get_args(strategy.model_fields["strategy"].annotation)
