"""The tables of a recipe, and the values that follow from several of them.

Knows: fields, shapes. Does not know: which values may go together (`recipe.schema.rules`).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator, model_validator

from cotswold.errors import GeometryError, RecipeError
from cotswold.geometry import Grid, MapShape, StackGeometry
from cotswold.recipe.bounds import VALUES_MAX, hidden_maximum, items
from cotswold.recipe.schema.cluster import Cluster
from cotswold.recipe.schema.data import Data, FrameData, GivenData, ImageData, SourcedData, TableData
from cotswold.recipe.schema.fields import Positive, Section, Span, Text, Times, pair
from cotswold.recipe.schema.network import Network
from cotswold.recipe.schema.training import (
    BatchTraining,
    DownpourTraining,
    LossObjective,
    Objective,
    StackObjective,
    StackTraining,
    Training,
)

RANKS_MAX = 1 << 20


class WorkerMesh(Section):
    """Partition of the network of each worker: all maps are split in space over a grid of ranks."""

    grid: Text | None = None
    """Rows and columns of ranks, such as `2x2`; or `auto`, the grid for which the simulator predicts the
    shortest step; or `none`. If not set: one process; under torchrun, mpirun and srun `auto`.
    """
    timeout: Span = 20.0
    """Timeout for a silent rank, in seconds; then all other ranks stop with an error."""
    microbatches: Annotated[int, Field(gt=0), hidden_maximum(64)] = 1
    """For strategies `batch` and `downpour`: number of micro-batches that the ranks compute concurrently,
    each with its own messages. While one waits for a late message, another computes (Chilimbi et al. 2014,
    section 3.2.5). Each batch, or portion, is divided into this many micro-batches.
    """

    @field_validator("grid")
    @classmethod
    def _check_grid(cls, grid: Text | None) -> str | None:
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


class Mesh(WorkerMesh):
    """Partition of the network over processes, and data-parallel replicas of it."""

    replicas: Annotated[int, Field(gt=0), hidden_maximum(RANKS_MAX)] = 1
    """For strategy `supervised`: number of data-parallel replicas, each one process or a grid of ranks. The
    replicas divide every batch of `batch_size` samples, and average their gradients in every step.
    """
    sync_batchnorm: bool = False
    """Batch normalisation with statistics of the whole batch, over all replicas. If false, each replica
    normalises by those of its own part.
    """


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
    def _check_price(self) -> Price:
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
    few_labels: Annotated[list[Times], items(100)] = Field(default_factory=list)
    """Numbers of labelled images of each class, such as `[1, 2, 5]`. A classifier learns from them, on
    responses of the network, on those of random filters and k-means, and on pixels. If not set, this is
    not measured.
    """


class Tables(Section):
    """The tables of a recipe."""

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

    @property
    def worker_grid(self) -> str | None:
        """Grid of ranks of each worker or replica; None if each is one process."""
        is_spread = isinstance(self.training, BatchTraining | DownpourTraining)
        return self.mesh.grid if is_spread and self.mesh.grid not in (None, "1x1") else None

    @property
    def alone(self) -> bool:
        """True if strategy `batch` runs in a single process: no workers, servers or grid."""
        return self.cluster.alone and self.worker_grid is None

    @property
    def input(self) -> MapShape:
        """Shape of the network's input; a vector has one channel per value, on a map of 1 x 1.

        Raises RecipeError if only the data know the shape.
        """
        data = self.data
        if isinstance(data, ImageData):
            height, width = pair(data.size)
            return MapShape(3 if data.colour == "rgb" else 1, height, width)
        if isinstance(data, GivenData):
            raise RecipeError(
                "the recipe does not know the shape of a sample; only the program's data set does"
            )
        if isinstance(data, TableData):
            if data.width is None:
                raise RecipeError(
                    "give data.width: the number of features of a row is unknown until the data are prepared"
                )
            return MapShape((2 * data.context + 1) * data.width, 1, 1)
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
        if isinstance(data, TableData):
            return data.width is not None
        return isinstance(data, ImageData) or data.features is not None

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
        """True if data servers make the training samples."""
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
                _check_size(stacks[-1])
            except GeometryError as error:
                raise GeometryError(f"network.stacks.{number}: {error}") from error
        return stacks


def _check_size(stack: StackGeometry) -> None:
    """Raise GeometryError for a stack that no machine could hold."""
    weights, values = stack.filters.parameters, max(stack.input.size, stack.responses.size)
    if max(weights, values) > VALUES_MAX:
        what = f"{weights:.3g} weights" if weights > VALUES_MAX else f"a map of {values:.3g} values"
        raise GeometryError(f"it would have {what}, more than any machine holds; make it smaller")
