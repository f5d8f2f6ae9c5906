"""A whole recipe: all tables, and the rules between them.

Knows: names, limits of fields together. Does not know: files, tensors, strategies. The string below a field
is its documentation; ``cotswold recipe explain`` prints it.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, ValidationError, field_validator, model_validator

from cotswold.errors import GeometryError, RecipeError
from cotswold.geometry import Grid, MapShape, StackGeometry
from cotswold.recipe.bounds import VALUES_MAX, at_most, items, shown
from cotswold.recipe.schema.cluster import Cluster
from cotswold.recipe.schema.copies import check_copies
from cotswold.recipe.schema.data import Data, FrameData, GivenData, PictureData, SourcedData
from cotswold.recipe.schema.fields import Positive, Section, Span, Text, pair
from cotswold.recipe.schema.network import Network
from cotswold.recipe.schema.training import (
    BatchTraining,
    DownpourTraining,
    LossObjective,
    Objective,
    OfStrategy,
    StackObjective,
    StackTraining,
    Training,
    strategy_of,
)

NAME_BYTES_MAX = 240
"""Longest name of a recipe in bytes: a file name has at most 255, and a store's name is longer than the
recipe's.
"""
RANKS_MAX = 1 << 20


class Mesh(Section):
    """Partition of the network over processes: all maps are split in space over a grid of ranks."""

    grid: Text | None = None
    """Rows and columns of ranks, such as `2x2`; or `auto`, the grid for which the simulator predicts the
    shortest step; or `none`. If not set: one process; under torchrun, mpirun and srun `auto`.
    """
    timeout: Span = 20.0
    """Timeout for a silent rank, in seconds; then all other ranks stop with an error."""
    in_flight: Annotated[int, Field(gt=0), at_most(64)] = 1
    """For strategies `batch` and `downpour`: number of micro-batches that the ranks compute concurrently,
    each with its own messages. While one waits for a late message, another computes (Chilimbi et al. 2014,
    section 3.2.5). Each batch, or portion, is divided into this many micro-batches.
    """

    @field_validator("grid")
    @classmethod
    def _is_a_grid(cls, grid: Text | None) -> str | None:
        if grid == "none":
            return "1x1"
        if grid is not None and grid != "auto":
            try:
                parsed = Grid.parse(grid)
            except GeometryError as error:
                raise ValueError(f"{error}; or auto, or none") from error
            if parsed.size > RANKS_MAX:
                raise ValueError(
                    f"mesh.grid {parsed} has {parsed.size:,} ranks; at most {RANKS_MAX:,} are possible"
                )
            return str(parsed)
        return grid


class Price(Section):
    """Price of the machine, for the accounting of a run, and limits of cost and time."""

    hardware_dollars: Positive | None = None
    """Price of the bought machine in US dollars; the report then shows cents per MFLOP/s."""
    rent_dollars_per_hour: Positive | None = None
    """Rent of the machine in US dollars per hour; the report then shows the dollars of the run."""
    max_dollars: Positive | None = None
    """Save and stop before the run costs more than this many US dollars, at `rent_dollars_per_hour`. The
    run stops before the step or evaluation that would exceed the limit, assuming it takes as long as the
    last one; time for the save is reserved. All time since the start of the command counts, work that was
    lost included. A step or portion that takes longer than expected, and the shutdown of processes, can
    exceed the limit.
    """
    max_hours: Positive | None = None
    """Save and stop before the run takes more hours than this, start-up and the time before resumptions
    included; see `max_dollars`.
    """

    @model_validator(mode="after")
    def _has_a_price(self) -> Price:
        if self.max_dollars is not None and self.rent_dollars_per_hour is None:
            raise ValueError("max_dollars needs price.rent_dollars_per_hour, the price of an hour; give both")
        return self

    @property
    def seconds_max(self) -> float | None:
        """Seconds of the run until the first limit; None without limits."""
        return min(self._limits().values(), default=None)

    @property
    def limit(self) -> str:
        """The first limit that the run reaches, as text; empty without limits."""
        limits = self._limits()
        return min(limits, key=lambda each: limits[each], default="")

    def _limits(self) -> dict[str, float]:
        limits = {}
        if self.max_hours is not None:
            limits[f"price.max_hours = {self.max_hours:g} is reached"] = 3600 * self.max_hours
        if self.max_dollars is not None and self.rent_dollars_per_hour is not None:
            seconds = 3600 * self.max_dollars / self.rent_dollars_per_hour
            limits[f"price.max_dollars = {self.max_dollars:g} is reached"] = seconds
        return limits


class Evaluation(Section):
    """A labelled set for measuring the selectivity of neurons after training."""

    name: Text
    """Name of the positive class, as shown in the table."""
    positives: Text
    """Source of the positive images."""
    negatives: Text
    """Source of the negative images."""


class Recipe(Section):
    """A whole recipe: data, network, objective, training, and where to run it.

    Each attribute is a table of the TOML file. `load` and `parse` read recipes; `cotswold recipe explain`
    documents every field.

    Raises:
        RecipeError: if a value has the wrong type or contradicts another; the message names the field.
    """

    name: Text
    """A short name; run directories are named after it."""
    data: Data
    """The samples: their type, source and preprocessing."""
    network: Network
    """The network: stacks, or layers."""
    objective: Objective = StackObjective()
    """The objective to minimise."""
    training: Training
    """The training strategy and its settings."""
    mesh: Mesh = Mesh()
    """Partition of one network over several processes."""
    cluster: Cluster = Cluster()
    """For strategies `batch` and `downpour`: the processes that share the samples."""
    evaluate: Annotated[list[Evaluation], items(1000)] = Field(default_factory=list)
    """Selectivity tests that `cotswold evaluate RUN` runs by default."""
    price: Price = Price()
    """Price of the machine, and limits of cost and time."""

    def __init__(self, **values: object) -> None:
        """Validate the tables; raises RecipeError with the same messages as for a file."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            from cotswold.recipe.error_messages import complaint

            raise RecipeError(f"Recipe(){complaint(error, '', (), Recipe)}") from error

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # files are validated without it

    @model_validator(mode="before")
    @classmethod
    def _objective_is_the_strategys(cls, values: object) -> object:
        """Choose the class of `[objective]`, which depends on the strategy in `[training]`."""
        if not isinstance(values, dict):
            return values
        given, strategy = values.get("objective", {}), strategy_of(values.get("training"))
        if strategy is None:  # the error is in [training], whatever [objective] contains
            return {name: value for name, value in values.items() if name != "objective"}
        return (
            {**values, "objective": OfStrategy(given, strategy.objective)} if type(given) is dict else values
        )

    @model_validator(mode="after")
    def _belongs_together(self) -> Recipe:
        strategy = self.training.strategy
        if not re.fullmatch(r"\w[\w .+-]*", self.name) or len(self.name.encode()) > NAME_BYTES_MAX:
            raise ValueError(
                f"name is {shown(self.name)}, but directories are named after it; use letters, digits, _, - "
                f"and ., at most {NAME_BYTES_MAX} bytes"
            )
        if not isinstance(self.data, GivenData) and (self.data.source is None) == (self.data.store is None):
            raise ValueError("[data] needs either source or store; give one of them")
        if strategy == "batch" and isinstance(self.data, PictureData) and self.data.augment:
            raise ValueError(
                "strategy batch compares evaluations of the same samples, but data.augment changes them each "
                "time; remove it, or choose another strategy"
            )
        if self.network.output != "linear" and not self._outputs_are_values:
            raise ValueError(
                f'network.output = "{self.network.output}" requires layers and objective.loss = "squared"'
            )
        if self.network.output_scale != 1 and (self.network.stacks or self.network.module):
            raise ValueError("network.output_scale is for a network of layers; remove it")
        if not isinstance(self.objective, self.training.objective):
            raise ValueError(f"a {type(self.objective).__name__} is not an objective of strategy {strategy}")
        if isinstance(self.training, StackTraining):
            self._check_stacks(self.training)
        else:
            self._check_supervised()
        if isinstance(self.training, BatchTraining):
            self._check_batch(self.training)
        elif isinstance(self.training, DownpourTraining):
            self._check_downpour(self.training)
        elif self.cluster != Cluster():
            raise ValueError(f"[cluster] is for strategies batch and downpour; {strategy} uses [mesh] grid")
        if self.mesh.in_flight > 1:
            self._check_in_flight()
        if self.network.tune and self.network.start is None:
            raise ValueError("network.tune needs network.start, a run of stacks to fine-tune")
        return self

    @property
    def _outputs_are_values(self) -> bool:
        return (
            isinstance(self.objective, LossObjective)
            and self.objective.loss == "squared"
            and self.network.module is None
        )

    def _check_stacks(self, training: StackTraining) -> None:
        network, strategy = self.network, training.strategy
        if self.offloaded:
            if self.mesh.grid not in (None, "1x1"):
                raise ValueError(
                    'training.offload = "disk" needs a single process; set mesh.grid=none or '
                    "training.offload=none"
                )
            if training.device != "cpu":
                raise ValueError('training.offload = "disk" computes on the CPU; set training.device to cpu')
        if not network.stacks:
            raise ValueError(f"strategy {strategy} trains [[network.stacks]]; give at least one")
        if network.layers or network.start is not None or network.module is not None:
            raise ValueError(
                f"strategy {strategy} takes [[network.stacks]] only; layers, start and module belong to "
                "strategy supervised"
            )
        if isinstance(self.data, GivenData):
            raise ValueError(
                'data.type = "dataset" belongs to network.module; stacks learn from pictures, vectors '
                "or frames"
            )

    def _check_supervised(self) -> None:
        network, data = self.network, self.data
        strategy = self.training.strategy
        if network.stacks:
            raise ValueError(
                f"strategy {strategy} trains [[network.layers]]; train stacks in a separate run "
                "and name that run in network.start"
            )
        if network.module is not None:
            if network.layers or network.start is not None:
                raise ValueError("network.module replaces layers and start; remove these")
            return
        if isinstance(data, GivenData):
            raise ValueError('data.type = "dataset" belongs to network.module; name the module there')
        if self.loss == "custom":
            raise ValueError('objective.loss = "custom" belongs to network.module; name a loss')
        if data.store is None and data.labels == "none":
            choices = "file" if data.type == "vectors" or _has_scheme(data.source) else "folders or file"
            raise ValueError(f"strategy {strategy} needs labels; set data.labels to {choices}")

    def _check_batch(self, training: BatchTraining) -> None:
        """Refuse settings that change the objective between evaluations, or that do not exist for batch."""
        if self.cluster.alone and self.cluster.servers > 1:
            raise ValueError(
                f"cluster.servers is {self.cluster.servers}, but one worker needs no servers; give "
                "cluster.workers, or remove servers"
            )
        for number, layer in enumerate(self.network.layers, 1):
            if layer.type == "dropout":
                raise ValueError(
                    f"layer {number} is dropout, which is random in each evaluation, but strategy batch "
                    "compares evaluations; remove it"
                )
            if layer.type == "normalisation" and layer.kind == "batch":
                raise ValueError(
                    f"layer {number} normalises over a batch, but the objective of strategy batch is a sum "
                    'over samples; remove it, or set kind to "contrast"'
                )
        if self.mesh.grid == "auto":
            raise ValueError(
                "mesh.grid = auto is not possible for workers of strategy batch; give rows and columns, such "
                "as 1x2, or remove it"
            )
        if self.cluster.processes > 1:
            raise ValueError(
                "cluster.processes is for replicas of strategy downpour; give more workers, or remove it"
            )
        if self.gang is not None and training.deterministic:
            raise ValueError(
                "training.deterministic needs sums in the order of one process, but ranks of a grid use "
                "another order; remove one of the two"
            )
        if self.network.start is not None:
            raise ValueError("strategy batch trains layers on the samples themselves; remove network.start")
        if self.cluster.replay is not None and not training.chooses:
            raise ValueError(
                "cluster.replay repeats evaluations that ended early; set training.fraction or "
                "training.deadline as in that run"
            )
        if training.deadline is not None and self.alone:
            raise ValueError("training.deadline is for a cluster; give cluster.workers, or remove it")
        if training.device != "cpu":
            raise ValueError('strategy batch computes on the CPU; set training.device to "cpu"')

    def _check_downpour(self, training: DownpourTraining) -> None:
        """Refuse settings that replicas cannot share, or that are not for them."""
        for number, layer in enumerate(self.network.layers, 1):
            if layer.type == "normalisation" and layer.kind == "batch":
                raise ValueError(
                    f"layer {number} normalises over a batch, but replicas would have different means; "
                    'remove it, or set kind to "contrast"'
                )
        kinds = [*(layer.type for layer in self.network.layers), "linear"]
        for number in (*training.send_factors, *training.send_gradient):
            if number > len(kinds) or kinds[number - 1] not in training.factored_layers:
                able = [str(at) for at, kind in enumerate(kinds, 1) if kind in training.factored_layers]
                raise ValueError(
                    f"layer {number} is not fully connected or local, so its weights cannot be sent as "
                    f"factors; layers that can: {', '.join(able)}"
                )
        if self.network.module is not None:
            for name in ("unit_norm", "send_factors", "send_gradient"):
                if getattr(training, name):
                    raise ValueError(
                        f"training.{name} is for [[network.layers]], not for a Python module; remove it"
                    )
            if self.gang is not None:
                raise ValueError("a Python module cannot be partitioned over ranks here; remove mesh.grid")
        if self.network.start is not None:
            raise ValueError(
                "strategy downpour trains layers on the samples themselves; remove network.start"
            )
        if self.mesh.grid == "auto":
            raise ValueError(
                "mesh.grid = auto is not possible for replicas of strategy downpour; give rows and columns, "
                "such as 1x2, or remove it"
            )
        if self.cluster.processes > 1 and self.gang is not None:
            raise ValueError(
                "a replica is either several processes that share the weights, or ranks that partition the "
                "network; remove cluster.processes or mesh.grid"
            )
        if self.cluster.processes > 1 and (training.threads or 1) > 1:
            raise ValueError(
                "each process of cluster.processes computes with one thread; remove training.threads, or "
                "give more processes"
            )
        if training.between is not None and training.fetch_every == 1 and self.cluster.processes == 1:
            raise ValueError(
                "training.between is for the steps between two pulls, but the replica pulls after each step; "
                "remove it, or set training.fetch_every above 1"
            )
        if training.clip is not None and self.gang is not None:
            raise ValueError(
                "training.clip bounds the norm of the whole gradient, which no rank of a grid has; remove "
                "training.clip or mesh.grid"
            )
        if training.wants_factors and (self.cluster.processes > 1 or self.gang is not None):
            raise ValueError(
                "a replica of several processes or ranks sums whole gradients and cannot push factors; "
                "remove training.send and training.send_factors, or cluster.processes and mesh.grid"
            )
        if training.device != "cpu":
            self._check_replicas_device(training.device)
        check_copies(self.cluster, training, has_grid=self.gang is not None)
        own = {
            *("workers", "processes", "servers", "server_copies", "server_copies_min", "replication"),
            *("flush_seconds", "address", "ports"),
            *("spread_servers", "encrypt", "silence", "metrics", "parameter_servers", "buckets"),
        }
        if self.cluster.parameter_servers is not None:
            own.add("wait")
        for name in Cluster.model_fields.keys() - own:
            if getattr(self.cluster, name) != getattr(Cluster(), name):
                raise ValueError(f"cluster.{name} is for strategy batch; remove it")

    def _check_replicas_device(self, device: str) -> None:
        """Refuse devices on which replicas cannot compute."""
        if re.fullmatch("cuda(:(0|[1-9][0-9]?))?", device) is None:
            raise ValueError(
                f'training.device is "{device}", but strategy downpour computes on the CPU or on CUDA '
                'devices; set it to "cpu", to "cuda", or to a device such as "cuda:0"'
            )
        if self.cluster.processes > 1 or self.gang is not None:
            raise ValueError(
                "the processes or ranks of a replica share CPU memory; set training.device to "
                '"cpu", or remove cluster.processes and mesh.grid'
            )
        if self.cluster.address is not None:
            raise ValueError(
                "replicas that Ray starts have no CUDA devices; set training.device to "
                '"cpu", or remove cluster.address'
            )

    def _check_in_flight(self) -> None:
        if self.gang is None:
            raise ValueError(
                "mesh.in_flight is for the ranks of a mesh.grid of strategies batch and downpour; remove it"
            )
        if any(layer.type == "dropout" for layer in self.network.layers):
            raise ValueError(
                "with mesh.in_flight, ranks would draw dropout in different orders; remove one of the two"
            )

    @property
    def gang(self) -> str | None:
        """Grid of ranks of each worker or replica; None if each is one process."""
        is_spread = isinstance(self.training, BatchTraining | DownpourTraining)
        return self.mesh.grid if is_spread and self.mesh.grid not in (None, "1x1") else None

    @property
    def alone(self) -> bool:
        """True if strategy `batch` runs in a single process: no workers, servers or grid."""
        return self.cluster.alone and self.gang is None

    @property
    def input(self) -> MapShape:
        """Shape of the network's input; a vector has one channel per value, on a map of 1 x 1.

        Raises RecipeError if only the data know the shape.
        """
        data = self.data
        if isinstance(data, PictureData):
            height, width = pair(data.size)
            return MapShape(3 if data.colour == "rgb" else 1, height, width)
        if isinstance(data, GivenData):
            raise RecipeError(
                "the recipe does not know the shape of a sample; only the program's data set does"
            )
        if data.features is None:
            raise RecipeError(
                "give data.features: the number of values per sample is unknown until the data are prepared"
            )
        frames = 2 * data.context + 1 if isinstance(data, FrameData) else 1
        return MapShape(frames * data.features, 1, 1)

    @property
    def input_known(self) -> bool:
        """True if the recipe itself states the network's input; a store has its own size."""
        data = self.data
        if isinstance(data, GivenData) or data.store is not None:
            return False
        return isinstance(data, PictureData) or data.features is not None

    @property
    def trains_stacks(self) -> bool:
        """True if the strategy trains stacks without labels; otherwise it trains layers."""
        return isinstance(self.training, StackTraining)

    @property
    def offloaded(self) -> bool:
        """True if filters are kept in files while stacks are trained."""
        return isinstance(self.training, StackTraining) and self.training.offload == "disk"

    @property
    def is_served(self) -> bool:
        """Whether data servers make the training samples."""
        return isinstance(self.data, SourcedData) and bool(self.data.servers)

    @property
    def stack_objective(self) -> StackObjective:
        """Objective of the stacks; raises TypeError if the strategy trains no stacks."""
        if isinstance(self.objective, StackObjective):
            return self.objective
        raise TypeError(f"strategy {self.training.strategy} trains no stacks")

    @property
    def loss(self) -> str:
        """Name of the loss against labels; raises TypeError if the strategy has none."""
        if isinstance(self.objective, LossObjective):
            return self.objective.loss
        raise TypeError(f"strategy {self.training.strategy} has no loss against labels")

    def sparsity(self, stack: int) -> float:
        """Return λ of a stack: the stack's value, or the general one."""
        own = self.network.stacks[stack].sparsity
        return self.stack_objective.sparsity if own is None else own

    def relative_rate(self, stack: int) -> float:
        """Return the learning rate of a stack in units of 1 / (α fan-in): the stack's value, or the
        general one.
        """
        if not isinstance(self.training, StackTraining):
            raise TypeError(f"strategy {self.training.strategy} trains no stacks")
        return self.network.stacks[stack].relative_rate or self.training.relative_rate

    def stack_geometries(self) -> list[StackGeometry]:
        """Return the geometry of every stack, from the input upwards."""
        shape, stacks = self.input, []
        for number, stack in enumerate(self.network.stacks):
            try:
                stacks.append(stack.geometry(shape))
                shape = stacks[-1].output
                _check_livable(stacks[-1])
            except GeometryError as error:
                raise GeometryError(f"network.stacks.{number}: {error}") from error
        return stacks


def _has_scheme(source: str | None) -> bool:
    """True for a source `scheme:...` of another package; such sources bring their own labels."""
    scheme, colon, _ = (source or "").partition(":")
    return bool(colon) and scheme.isidentifier() and scheme != "builtin"


def _check_livable(stack: StackGeometry) -> None:
    """Raise GeometryError for a stack that no machine could hold."""
    weights, values = stack.filters.parameters, max(stack.input.size, stack.responses.size)
    if max(weights, values) > VALUES_MAX:
        what = f"{weights:.3g} weights" if weights > VALUES_MAX else f"a map of {values:.3g} values"
        raise GeometryError(f"it would have {what}, more than any machine holds; make it smaller")
