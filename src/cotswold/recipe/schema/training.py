"""`[training]` and `[objective]`: how a network is trained and what is minimised; one class a `strategy`.

Knows: the fields of each strategy. Does not know: what a strategy does with them.

A strategy is a class with its name as the literal type of ``strategy``, listed in the union `Training`; its
objective is a class in the union `Objective`. A strategy from another package derives its section from one
of these, and joins by an entry point (`recipe.plugins`).
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
    """`cross_entropy`: over the softmax of the scores; `squared`: predicts numbers, if the labels are floats,
    by their squared error; with classes it is the error against `high` for the class and `low` for the
    others; `logistic`: one detector a class against all others; `custom`: a function that a Python program
    gives, for `network.module`."""
    low: float = 0.0
    """For `squared` and classes: the target of every output but that of the class. A network that ends in
    tanh learns -1."""
    high: float = 1.0
    """For `squared` and classes: the target of the output of the class."""

    @model_validator(mode="after")
    def _in_order(self) -> LossObjective:
        if not self.low < self.high:
            raise ValueError(f"low is {self.low:g} and high {self.high:g}; low must lie below high")
        if self.loss != "squared" and (self.low, self.high) != (0.0, 1.0):
            raise ValueError(
                f'low and high are targets of loss "squared", not of "{self.loss}"; take them out'
            )
        return self


class SharedTraining(Section):
    """What every strategy has."""

    objective: ClassVar[type[StackObjective] | type[LossObjective]]
    """The class of `[objective]` that belongs to the strategy."""

    strategy: str
    """How the network is trained."""
    seed: Seed = 0
    """Seed of filters, of the order of samples and of dropout."""
    checkpoint_minutes: Span = 5.0
    """Minutes between checkpoints; one is also written at the end of every stack. The first is written after
    15 seconds, and each next one after as long as the run had trained before, up to these minutes."""
    checkpoints_kept: Times = 2
    """How many of the newest checkpoints stay on disk."""
    threads: Threads | None = None
    """Threads of computation, of each rank where there are several; all cores that the process is granted,
    divided among the ranks of a host, by default. `--threads` stands before it."""
    device: Text = "cpu"
    """A torch device, such as `cpu` or `cuda:0`."""


class SteppedTraining(SharedTraining):
    """What the strategies have that take a step a mini-batch."""

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


class StackTraining(SteppedTraining):
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


class SupervisedTraining(SteppedTraining):
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


class BatchTraining(SharedTraining):
    """Layers, with labels, by the value and gradient over the whole training set."""

    objective = LossObjective

    strategy: Literal["batch"] = "batch"
    """`batch`: conjugate gradient or L-BFGS on the whole training set, on one process or on the workers of a
    cluster (Aberdeen et al. 2000; Dean et al. 2012, section 4.2)."""
    method: Literal["lbfgs", "cg"] = "lbfgs"
    """`lbfgs`: limited-memory BFGS; `cg`: nonlinear conjugate gradient."""
    beta: Literal["polak-ribiere", "hestenes-stiefel", "dai-yuan", "hager-zhang"] | None = None
    """For `cg`: how much of the last direction is kept; `polak-ribiere`, cut off at 0 (PR+), where nothing is
    said."""
    search: Literal["wolfe", "approximate", "bunyip"] = "wolfe"
    """The line search. `wolfe`: strong Wolfe conditions, and the approximate ones where float32 rounds the
    objective's changes away; `approximate`: these alone; `bunyip`, for `cg`: exponential steps, a
    bracket by the sign of the directional derivative, quadratic interpolation."""
    memory: Annotated[int, Field(gt=0), at_most(1000)] | None = None
    """For `lbfgs`: how many of the last steps and changes of the gradient are kept; 10 where nothing is
    said."""
    iterations: Times = 100
    """Stop after so many iterations: directions along which a line search went."""
    evaluations: Times | None = None
    """Stop after so many evaluations of value and gradient; an iteration is finished first."""
    flops: Positive | None = None
    """Stop after so many FLOPs of value and gradient, as the account counts them (1e15 is a PFLOP); an
    iteration is finished first."""
    tolerance: NotNegative = 0.0
    """Stop where the norm of the gradient is at most this."""
    stall_iterations: Annotated[int, Field(ge=0), at_most(1_000_000)] = 10
    """Stop, converged, after so many iterations in a row in which the value fell by no more than its
    rounding, the slopes along the steps promised no more either, and the gradient was never shorter than
    before. 0: never. Does not count where an evaluation may end before all patterns are done (`fraction`,
    `deadline`)."""
    weight_decay: NotNegative = 0.0
    """λ: half of it times the square of every weight that learns, biases too, is added to the mean loss, and
    λ times the weight to its gradient. For n training samples that is C = 1 / (λ n) of scikit-learn, which
    leaves intercepts out. The loss of an iteration has it in it; that on validation samples has not."""
    portion: Times = 320
    """Patterns in a portion: what a worker computes between two looks at what is wanted."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """An evaluation ends when this part of the portions is done (Aberdeen et al. 2000, section 6.2: 0.8).
    Evaluations that are compared use the same patterns; see `cycle`."""
    deadline: Positive | None = None
    """On a cluster: an evaluation that chooses its patterns ends after this many times its usual seconds,
    with what is done by then."""
    cycle: Times | None = None
    """Iterations for which the patterns stay the same, where `fraction` is below 1 or there is a `deadline`;
    5 where nothing is said."""
    deterministic: bool = False
    """Sum portions along a fixed tree, so that the gradient has the same bits whoever computed what."""
    validate_every: Times = 1
    """Iterations between validations."""
    patience: Times | None = None
    """Stop after so many validations without a better validation loss."""

    @property
    def chooses(self) -> bool:
        """Whether an evaluation may end before all patterns are done."""
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
                raise ValueError('beta is for method "cg"; take it out, or set method to cg')
        elif self.memory is not None:
            raise ValueError('memory is for method "lbfgs"; take it out, or set method to lbfgs')
        if self.cycle is not None and not self.chooses:
            raise ValueError("cycle is for a fraction below 1; take it out, or give fraction")
        return self


LayerNumber = Annotated[int, Field(gt=0), at_most(1000)]
"""Of the layers of a recipe, from 1."""


class DownpourTraining(SharedTraining):
    """Layers, with labels, by replicas that do not wait for each other."""

    objective = LossObjective

    strategy: Literal["downpour"] = "downpour"
    """`downpour`: replicas, `cluster.workers` processes, push gradients to parameter servers, which apply
    them as they come, and pull parameters (Dean et al. 2012, section 4.1). A layer that normalises over a
    batch is refused: each replica would have means of its own. Dropout draws in each replica anew."""
    batch_size: Times = 96
    """Samples in a mini-batch."""
    epochs: Passes = 10
    """Passes over the training samples, of all replicas together."""
    learning_rate: Positive = 0.05
    """Learning rate on the servers; with rule `deltas` that of the replicas' own steps."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls from its value to 0 over the run. Nobody counts the steps of all replicas,
    so it follows samples: the rate of a push, on a server, is that of the place of its first sample among all
    samples of all epochs, which are handed out in their order. What was left out counts as had, and samples
    that a lost replica had are learnt at the rate of their place."""
    warmup: Fraction = 0.0
    """The part of the run over which the learning rate rises from 0, by the same count."""
    weight_decay: NotNegative = 0.0
    """Weight decay: this times a weight, biases too, is added to its gradient in each step. A replica adds it
    to the gradients that it pushes, by the parameters that it has pulled; to those that come as factors the
    server does, by its own."""
    clip: Positive | None = None
    """The greatest norm of a mini-batch's gradient: a longer one is scaled to it by its replica, before
    weight decay is added and before gradients are added up. Where nothing is said nothing is clipped."""
    rule: Literal["sgd", "momentum", "adagrad", "deltas"] = "sgd"
    """What a server does with a push. `sgd`: a step against the gradient; `momentum`: with a part of the last
    step; `adagrad`: a rate for each weight, the learning rate over the root of the sum of its squared
    gradients, and what is summed up is shared by all replicas; `deltas`: adds up what replicas have moved
    their own copies by (Chilimbi et al. 2014, section 3.3; Hogwild): they take plain steps of SGD, and push
    what `push_every` of them come to. There is no Adagrad of deltas: the squares of moves that were added up
    are not those of gradients."""
    momentum: Annotated[float, Field(gt=0, lt=1)] | None = None
    """For `momentum`: the part of the last step that is kept; 0.9 where nothing is said. With n replicas each
    of their pushes is a step of it, so that it forgets n times as fast."""
    fetch_every: Times = 1
    """Steps of a replica between two pulls; `between` says from what it computes in between."""
    between: Literal["plain", "none"] | None = None
    """What a replica does to its own copy of the parameters between two pulls, where `fetch_every` is above
    1. `plain`: a step of SGD, w - rate · gradient, after each gradient, as the client of Dean et al. 2012
    does, until the next pull replaces the copy; `none`: it computes from the same parameters. Where nothing
    is said: `plain` with rules `sgd` and `momentum`, since servers will move that way too, and `none` with
    `adagrad`, whose learning rate is no rate of plain steps, and with `send` or `send_factors` for factors,
    of which a replica has no gradient to step by. The same is said of several `cluster.processes` between two
    pulls. Rule `deltas` always takes steps."""
    push_every: Times = 1
    """Steps of a replica that are added up for a push: gradients, or its own steps with rule `deltas`."""
    send: Literal["auto", "gradient", "factors"] = "auto"
    """How gradients of the weights of fully connected and local layers go to servers. `gradient`: as they
    are, M · N numbers for M inputs and N outputs; `factors`: as activations and error terms, k (M · S + N)
    numbers for k samples a push where the layer's rows lie on S servers, which multiply them (Chilimbi et al.
    2014, section 3.3); `auto`: as factors where these are fewer numbers, and never where a replica takes
    steps of its own (`between`, rule `deltas`), nor for a layer that is given samples, as they are or as
    something without weights has changed them. The activations of such a layer are the samples: with
    `factors` they go to servers. Other tensors go as they are. Factors are summed in another order than on
    the replica, so they give the same gradient but for rounding."""
    send_factors: Annotated[list[LayerNumber], items(1000)] = Field(default_factory=list)
    """Layers by number, from 1, whose weights go as factors whatever `send` says, those that are given
    samples too; the layer of outputs comes after the last of [[network.layers]]."""
    send_gradient: Annotated[list[LayerNumber], items(1000)] = Field(default_factory=list)
    """Layers by number, from 1, whose weights go as gradients whatever `send` says."""
    unit_norm: bool = False
    """Whether filters have norm 1: at first, and after each update on the server, each is divided by its
    norm, in fully connected layers and convolutions the weights of one output, in local layers those of one
    neuron. The layer of outputs and biases are left as they are."""
    staleness: Annotated[int, Field(ge=0), at_most(1_000_000)] | None = None
    """How many updates a shard may have had since the parameters were pulled that an update is computed from;
    any number where nothing is said. With 0 one replica is ordinary SGD, to the bit."""
    stale: Literal["wait", "scale", "drop"] | None = None
    """What is done about `staleness`. `wait`, where nothing is said: updates of fast replicas wait for what
    slow ones compute, and a replica computes nothing while its own push or pull is under way; `scale`: an
    update of a greater staleness s is multiplied by `staleness` / s; `drop`: it is not applied, and its
    samples are counted as refused."""
    epoch_fraction: Annotated[float, Field(gt=0, le=1)] = 0.75
    """An epoch ends when this part of `epoch_of` is done (Chilimbi et al. 2014: 75 % of the replicas)."""
    epoch_of: Literal["replicas", "samples"] = "replicas"
    """`replicas`: all samples are handed out, and this part of the replicas has none left of the epoch;
    `samples`: this part of the samples is settled; what nobody has had by then is left out, and counted."""
    warm_start: Annotated[int, Field(ge=0), at_most(1_000_000_000_000)] = 0
    """So many samples are learnt by one replica first; the others wait."""
    patience: Times | None = None
    """Stop after this many validations without a better loss; one follows each epoch, unless the one before
    still goes on."""
    device: Text = "cpu"
    """Where replicas compute, and whoever judges: `cpu`; `cuda`, the CUDA devices of this machine, which
    replicas take in turn by their numbers; or one of these, such as `cuda:0`. On CUDA devices a replica is
    one process of this machine: `cluster.processes`, `mesh.grid` and `cluster.address` are refused. Parameter
    servers are in memory."""
    shard_kilobytes: Annotated[int, Field(gt=0), at_most(1_000_000)] = 1024
    """The size of a shard, of which each is updated and pulled by itself: about, for it has whole rows."""
    record_traffic: bool = False
    """Whether each server writes down, in the folder `traffic` of the run, when it was sent what by which
    replica: kinds, shards and numbers of samples, for `cotswold bench server --trace`, and nothing of their
    contents. When a run is resumed, its newest part alone is kept."""

    factored_layers: ClassVar[tuple[str, ...]] = ("linear", "local")
    """Types of layers that can be pushed as factors."""

    @property
    def own_steps(self) -> Literal["none", "plain", "pushed"]:
        """Steps of replicas on their own copies, and whether these are what is pushed."""
        if self.rule == "deltas":
            return "pushed"
        if self.between is not None:
            return self.between
        plain = self.fetch_every > 1 and self.rule != "adagrad" and not self.wants_factors
        return "plain" if plain else "none"

    def sent(self, number: int) -> Literal["auto", "gradient", "factors"]:
        """How the weights of a layer, by its number from 1, are pushed."""
        if self.own_steps != "none" or number in self.send_gradient:
            return "gradient"
        return "factors" if number in self.send_factors else self.send

    @property
    def wants_factors(self) -> bool:
        """Whether some layers are to go as factors, whatever the numbers say."""
        return self.send == "factors" or bool(self.send_factors)

    @model_validator(mode="after")
    def _steps(self) -> DownpourTraining:
        if self.rule == "deltas" and self.between is not None:
            raise ValueError('rule "deltas" pushes plain steps of the replicas; take between out')
        if self.between == "plain" and self.rule == "adagrad":
            raise ValueError(
                'rule "adagrad" divides its learning rate by the root of summed squares, which only servers '
                'have, so it is no rate of plain steps; set between to "none"'
            )
        if self.wants_factors and self.own_steps != "none":
            raise ValueError(
                "a replica that takes steps of its own needs whole gradients, and does not push factors; "
                + ('set rule to "sgd"' if self.rule == "deltas" else 'set between to "none"')
                + ', or take "factors" out'
            )
        both = sorted(set(self.send_factors) & set(self.send_gradient))
        if both:
            raise ValueError(f"layer {both[0]} is in send_factors and in send_gradient; take it out of one")
        return self

    @model_validator(mode="after")
    def _belongs_together(self) -> DownpourTraining:
        if self.momentum is not None and self.rule != "momentum":
            raise ValueError('momentum is for rule "momentum"; take it out, or set rule to momentum')
        if self.stale is not None and self.staleness is None:
            raise ValueError("stale says what is done about a bound; give staleness, or take it out")
        if self.stale == "scale" and self.staleness == 0:
            raise ValueError('stale "scale" needs a staleness of 1 at least, for updates are scaled by it')
        if self.staleness == 0 and (self.fetch_every, self.push_every) != (1, 1):
            raise ValueError(
                "a staleness of 0 needs the newest parameters at each step; set fetch_every and "
                "push_every to 1"
            )
        waits = self.staleness is not None and self.stale in (None, "wait")
        if waits and self.fetch_every > self.push_every:
            raise ValueError(
                'stale "wait" needs the parameters that each push is computed from; set fetch_every to '
                "push_every or less"
            )
        return self


LayerTraining = SupervisedTraining | BatchTraining | DownpourTraining
"""The strategies that train layers, or a program's module."""
Training = Annotated[
    GreedyTraining | JointTraining | SupervisedTraining | BatchTraining | DownpourTraining,
    Field(discriminator="strategy"),
]
"""The union of all strategies."""
STRATEGIES: list[type[SharedTraining]] = [
    GreedyTraining,
    JointTraining,
    SupervisedTraining,
    BatchTraining,
    DownpourTraining,
]
"""All of them; those of other packages join (`recipe.plugins`)."""


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
