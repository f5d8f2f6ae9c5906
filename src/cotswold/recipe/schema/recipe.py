"""A whole recipe: the tables together, and what must hold between them.

Knows: names, limits of fields together. Does not know: files, tensors, strategies. A comment string below a
field is its documentation; ``cotswold recipe explain`` prints it.
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
from cotswold.recipe.schema.data import Data, FrameData, GivenData, PictureData
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
"""A file's name has at most 255 bytes, and that of a store is longer than the recipe's."""
RANKS_MAX = 1 << 20


class Mesh(Section):
    """How the network is cut over several processes: every map in space, over rows and columns of ranks."""

    grid: Text | None = None
    """Rows and columns of ranks, such as `2x2`, or `auto`: the grid on which the simulator expects the
    shortest update, or `none`. One process where nothing is said; `auto` under torchrun, mpirun and srun."""
    timeout: Span = 20.0
    """Seconds for which a rank may be silent before all others give it up and stop."""
    in_flight: Annotated[int, Field(gt=0), at_most(64)] = 1
    """For strategies `batch` and `downpour`: micro-batches that the ranks compute at once, each with messages
    of its own, so that while one waits for a late message another computes (Chilimbi et al. 2014, section
    3.2.5). A batch, or portion, is divided into so many."""

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
                    f"mesh.grid is {parsed}: {parsed.size:,} ranks; at most {RANKS_MAX:,} can be"
                )
            return str(parsed)
        return grid


class Price(Section):
    """What the machine costs, for the accounting of a run."""

    hardware_dollars: Positive | None = None
    """Price of the bought machine, US dollars: gives cents per MFLOP/s."""
    rent_dollars_per_hour: Positive | None = None
    """Price of the rented machine, US dollars an hour: gives dollars for the run."""
    max_dollars: Positive | None = None
    """Save and stop before the run costs more than this, at `rent_dollars_per_hour`: before the step or
    evaluation that would pass it, if it takes as long as the one before; time for the save is left. All of
    the run's time counts, from the start of the command, and of work that was lost, too. It may be passed by
    the rest of a step or portion that takes longer than that, and by the end of the processes."""
    max_hours: Positive | None = None
    """Save and stop before the run takes more hours than this, start-up and the time before resumptions
    included; as `max_dollars`."""

    @model_validator(mode="after")
    def _has_a_price(self) -> Price:
        if self.max_dollars is not None and self.rent_dollars_per_hour is None:
            raise ValueError(
                "max_dollars needs price.rent_dollars_per_hour, which says what an hour costs; give both"
            )
        return self

    @property
    def seconds_max(self) -> float | None:
        """Seconds of the run after which a limit is reached; None without any."""
        return min(self._limits().values(), default=None)

    @property
    def limit(self) -> str:
        """The limit that is reached first, in words; nothing without any."""
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
    """Labelled sets on which the neurons' selectivity is measured after training."""

    name: Text
    """What the positives are, as the table calls it."""
    positives: Text
    """Source of the pictures that show it."""
    negatives: Text
    """Source of the pictures that do not."""


class Recipe(Section):
    """A whole recipe."""

    name: Text
    """A short name; run directories are called after it."""
    data: Data
    """What the samples are and where they come from."""
    network: Network
    """Stacks, or layers."""
    objective: Objective = StackObjective()
    """What is minimised."""
    training: Training
    """How it is minimised."""
    mesh: Mesh = Mesh()
    """On how many processes one network is cut."""
    cluster: Cluster = Cluster()
    """For strategies `batch` and `downpour`: over how many processes the samples are spread."""
    evaluate: Annotated[list[Evaluation], items(1000)] = Field(default_factory=list)
    """Selectivity tests that `cotswold evaluate RUN` runs without further words."""
    price: Price = Price()
    """What the machine costs."""

    def __init__(self, **values: object) -> None:
        """A recipe of these tables; raises RecipeError in the words that are used of a file."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            from cotswold.recipe.error_messages import complaint

            raise RecipeError(f"Recipe(){complaint(error, '', ())}") from error

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # files are validated without it

    @model_validator(mode="before")
    @classmethod
    def _objective_is_the_strategys(cls, values: object) -> object:
        """Say of which class `[objective]` is, which only `[training]` knows."""
        if not isinstance(values, dict):
            return values
        given, strategy = values.get("objective", {}), strategy_of(values.get("training"))
        if strategy is None:  # the mistake is there, whatever the objective says
            return {name: value for name, value in values.items() if name != "objective"}
        return (
            {**values, "objective": OfStrategy(given, strategy.objective)} if type(given) is dict else values
        )

    @model_validator(mode="after")
    def _belongs_together(self) -> Recipe:
        strategy = self.training.strategy
        if not re.fullmatch(r"\w[\w .+-]*", self.name) or len(self.name.encode()) > NAME_BYTES_MAX:
            raise ValueError(
                f"name is {shown(self.name)}, and directories are called after it; use letters, digits, _, - "
                f"and ., at most {NAME_BYTES_MAX} bytes"
            )
        if not isinstance(self.data, GivenData) and (self.data.source is None) == (self.data.store is None):
            raise ValueError("[data] needs either source or store; give one of them")
        if strategy == "batch" and isinstance(self.data, PictureData) and self.data.augment:
            raise ValueError(
                "strategy batch compares evaluations of the same samples, and data.augment makes others each "
                "time; leave it out, or choose another strategy"
            )
        if self.network.output != "linear" and not self._outputs_are_values:
            raise ValueError(
                f'network.output = "{self.network.output}" goes with layers and objective.loss = "squared"'
            )
        if self.network.output_scale != 1 and (self.network.stacks or self.network.module):
            raise ValueError("network.output_scale is for a network of layers; take it out")
        if not isinstance(self.objective, self.training.objective):
            raise ValueError(f"a {type(self.objective).__name__} is no objective of strategy {strategy}")
        if isinstance(self.training, StackTraining):
            self._check_stacks(self.training)
        else:
            self._check_supervised()
        if isinstance(self.training, BatchTraining):
            self._check_batch(self.training)
        elif isinstance(self.training, DownpourTraining):
            self._check_downpour(self.training)
        elif self.cluster != Cluster():
            raise ValueError(f"[cluster] is for strategies batch and downpour; {strategy} has [mesh] grid")
        if self.mesh.in_flight > 1:
            self._check_in_flight()
        if self.network.tune and self.network.start is None:
            raise ValueError("network.tune needs network.start, a run of stacks to tune")
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
                    'training.offload = "disk" is for one process, grid none; or set training.offload=none'
                )
            if training.device != "cpu":
                raise ValueError('training.offload = "disk" computes on the CPU; set training.device to cpu')
        if not network.stacks:
            raise ValueError(f"strategy {strategy} learns [[network.stacks]]; give at least one")
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
                f"strategy {strategy} learns [[network.layers]]; put stacks into a run of their "
                "own and name it in network.start"
            )
        if network.module is not None:
            if network.layers or network.start is not None:
                raise ValueError("network.module stands in place of layers and start; take these out")
            return
        if isinstance(data, GivenData):
            raise ValueError('data.type = "dataset" belongs to network.module; name the module there')
        if self.loss == "custom":
            raise ValueError('objective.loss = "custom" belongs to network.module; name a loss')
        if data.store is None and data.labels == "none":
            choices = "file" if data.type == "vectors" or _has_scheme(data.source) else "folders or file"
            raise ValueError(f"strategy {strategy} needs labels; set data.labels to {choices}")

    def _check_batch(self, training: BatchTraining) -> None:
        """What would make the objective another function at each evaluation, or is not to be had."""
        if self.cluster.alone and self.cluster.servers > 1:
            raise ValueError(
                f"cluster.servers is {self.cluster.servers}, but one worker needs none; give workers, or "
                "take servers out"
            )
        for number, layer in enumerate(self.network.layers, 1):
            if layer.type == "dropout":
                raise ValueError(
                    f"layer {number} is dropout, which draws anew at each evaluation, and strategy batch "
                    "compares evaluations; take it out"
                )
            if layer.type == "normalisation" and layer.kind == "batch":
                raise ValueError(
                    f"layer {number} normalises over a batch, and the objective of strategy batch is a sum "
                    'over patterns; take it out, or set kind to "contrast"'
                )
        if self.mesh.grid == "auto":
            raise ValueError(
                "mesh.grid = auto is no grid for workers of strategy batch; give rows and columns, such as "
                "1x2, or take it out"
            )
        if self.cluster.processes > 1:
            raise ValueError(
                "cluster.processes is for replicas of strategy downpour; give more workers, or take it out"
            )
        if self.gang is not None and training.deterministic:
            raise ValueError(
                "training.deterministic asks for sums in the order of one process, and ranks of a grid have "
                "another; take one of the two out"
            )
        if self.network.start is not None:
            raise ValueError("strategy batch trains layers on the samples themselves; take network.start out")
        if self.cluster.replay is not None and not training.chooses:
            raise ValueError(
                "cluster.replay repeats the patterns of evaluations that ended early; give training.fraction "
                "or training.deadline as that run has it"
            )
        if training.deadline is not None and self.alone:
            raise ValueError("training.deadline is for a cluster; give cluster.workers, or take it out")
        if training.device != "cpu":
            raise ValueError('strategy batch computes on the CPU; set training.device to "cpu"')

    def _check_downpour(self, training: DownpourTraining) -> None:
        """What replicas could not share, or is not for them."""
        for number, layer in enumerate(self.network.layers, 1):
            if layer.type == "normalisation" and layer.kind == "batch":
                raise ValueError(
                    f"layer {number} normalises over a batch, and each replica would have means of its own; "
                    'take it out, or set kind to "contrast"'
                )
        kinds = [*(layer.type for layer in self.network.layers), "linear"]
        for number in (*training.send_factors, *training.send_gradient):
            if number > len(kinds) or kinds[number - 1] not in training.factored_layers:
                able = [str(at) for at, kind in enumerate(kinds, 1) if kind in training.factored_layers]
                raise ValueError(
                    f"layer {number} is no fully connected or local layer, whose weights could go as "
                    f"factors; those are layers {', '.join(able)}"
                )
        if self.network.module is not None:
            for name in ("unit_norm", "send_factors", "send_gradient"):
                if getattr(training, name):
                    raise ValueError(
                        f"training.{name} is for [[network.layers]], not for a program's module; take it out"
                    )
            if self.gang is not None:
                raise ValueError("a program's module is not cut into a gang's ranks; take mesh.grid out")
        if self.network.start is not None:
            raise ValueError(
                "strategy downpour trains layers on the samples themselves; take network.start out"
            )
        if self.mesh.grid == "auto":
            raise ValueError(
                "mesh.grid = auto is no grid for replicas of strategy downpour; give rows and columns, such "
                "as 1x2, or take it out"
            )
        if self.cluster.processes > 1 and self.gang is not None:
            raise ValueError(
                "a replica is either several processes on one copy of the weights, or ranks that cut the "
                "network; take one of cluster.processes and mesh.grid out"
            )
        if self.cluster.processes > 1 and (training.threads or 1) > 1:
            raise ValueError(
                "each of cluster.processes computes with one thread; take training.threads out, or give more "
                "processes"
            )
        if training.between is not None and training.fetch_every == 1 and self.cluster.processes == 1:
            raise ValueError(
                "training.between says what a replica does between two pulls, and it pulls after each step; "
                "take it out, or set training.fetch_every above 1"
            )
        if training.clip is not None and self.gang is not None:
            raise ValueError(
                "no rank of a replica's grid has the whole gradient, whose norm training.clip bounds; take "
                "one of training.clip and mesh.grid out"
            )
        if training.wants_factors and (self.cluster.processes > 1 or self.gang is not None):
            raise ValueError(
                "a replica of several processes or ranks adds up whole gradients, and pushes no factors; "
                "take training.send and training.send_factors out, or cluster.processes and mesh.grid"
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
                raise ValueError(f"cluster.{name} is for strategy batch; take it out")

    def _check_replicas_device(self, device: str) -> None:
        """Whether replicas can be there instead of on the CPU."""
        if re.fullmatch("cuda(:(0|[1-9][0-9]?))?", device) is None:
            raise ValueError(
                f'training.device is "{device}", and strategy downpour computes on the CPU or on CUDA '
                'devices; set it to "cpu", to "cuda", or to one of these, such as "cuda:0"'
            )
        if self.cluster.processes > 1 or self.gang is not None:
            raise ValueError(
                "the processes or ranks of a replica share memory of the CPU; set training.device to "
                '"cpu", or take cluster.processes and mesh.grid out'
            )
        if self.cluster.address is not None:
            raise ValueError(
                "replicas that Ray starts are given no CUDA devices; set training.device to "
                '"cpu", or take cluster.address out'
            )

    def _check_in_flight(self) -> None:
        if self.gang is None:
            raise ValueError(
                "mesh.in_flight is for the ranks of a mesh.grid of strategies batch and downpour; take it out"
            )
        if any(layer.type == "dropout" for layer in self.network.layers):
            raise ValueError(
                "with mesh.in_flight ranks would draw dropout in different orders; take one of the two out"
            )

    @property
    def gang(self) -> str | None:
        """The grid of ranks that each worker or replica is; None where it is none."""
        is_spread = isinstance(self.training, BatchTraining | DownpourTraining)
        return self.mesh.grid if is_spread and self.mesh.grid not in (None, "1x1") else None

    @property
    def alone(self) -> bool:
        """Whether strategy `batch` needs one process only: no workers, or servers, beside it."""
        return self.cluster.alone and self.gang is None

    @property
    def input(self) -> MapShape:
        """The map that the network reads: a vector has one channel a value, on a map of 1 x 1.

        Raises RecipeError where only the data know it.
        """
        data = self.data
        if isinstance(data, PictureData):
            height, width = pair(data.size)
            return MapShape(3 if data.colour == "rgb" else 1, height, width)
        if isinstance(data, GivenData):
            raise RecipeError("what a sample is like is known to the data set alone, which a program gives")
        if data.features is None:
            raise RecipeError(
                "how many values a sample has is not known before the data are prepared; give data.features"
            )
        frames = 2 * data.context + 1 if isinstance(data, FrameData) else 1
        return MapShape(frames * data.features, 1, 1)

    @property
    def input_known(self) -> bool:
        """Whether the recipe itself says what the network reads; a store brings its own size."""
        data = self.data
        if isinstance(data, GivenData) or data.store is not None:
            return False
        return isinstance(data, PictureData) or data.features is not None

    @property
    def trains_stacks(self) -> bool:
        """Whether its strategy trains stacks without labels; otherwise it trains layers."""
        return isinstance(self.training, StackTraining)

    @property
    def offloaded(self) -> bool:
        """Whether filters are in files while stacks are trained."""
        return isinstance(self.training, StackTraining) and self.training.offload == "disk"

    @property
    def stack_objective(self) -> StackObjective:
        """What stacks minimise; TypeError for a strategy that trains none."""
        if isinstance(self.objective, StackObjective):
            return self.objective
        raise TypeError(f"strategy {self.training.strategy} trains no stacks")

    @property
    def loss(self) -> str:
        """The loss against labels; TypeError for a strategy that has none."""
        if isinstance(self.objective, LossObjective):
            return self.objective.loss
        raise TypeError(f"strategy {self.training.strategy} has no loss against labels")

    def sparsity(self, stack: int) -> float:
        """λ of a stack: its own, or the general one."""
        own = self.network.stacks[stack].sparsity
        return self.stack_objective.sparsity if own is None else own

    def relative_rate(self, stack: int) -> float:
        """The learning rate of a stack in units of 1 / (α fan-in): its own, or the general one."""
        if not isinstance(self.training, StackTraining):
            raise TypeError(f"strategy {self.training.strategy} trains no stacks")
        return self.network.stacks[stack].relative_rate or self.training.relative_rate

    def stack_geometries(self) -> list[StackGeometry]:
        """The geometry of every stack, from the input upwards."""
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
    """Whether a source is named `scheme:...`, as those of other packages are, which bring labels of their
    own."""
    scheme, colon, _ = (source or "").partition(":")
    return bool(colon) and scheme.isidentifier() and scheme != "builtin"


def _check_livable(stack: StackGeometry) -> None:
    """Raise GeometryError for a stack that no machine could hold."""
    weights, values = stack.filters.parameters, max(stack.input.size, stack.responses.size)
    if max(weights, values) > VALUES_MAX:
        what = f"{weights:.3g} weights" if weights > VALUES_MAX else f"a map of {values:.3g} values"
        raise GeometryError(f"it would have {what}, more than any machine holds; make it smaller")
