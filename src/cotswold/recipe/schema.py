"""The schema of a recipe: every field with its unit and default.

Knows: names, types, limits of single fields and of fields together. Does not know: files, tensors,
strategies. A comment string below a field is its documentation; ``cotswold recipe --explain`` prints it.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from cotswold.errors import GeometryError
from cotswold.geometry import BlockLocal, Grid, MapShape, Smoothing, StackGeometry, Window
from cotswold.recipe.bounds import VALUES_MAX, at_most, characters, items, shown

Pixels = Annotated[int, Field(gt=0), at_most(1 << 16)]
Pair = Annotated[
    Pixels | tuple[Pixels, Pixels],
    BeforeValidator(
        lambda value: tuple(value) if isinstance(value, list) else value
    ),  # TOML knows lists only
]
Padding = Annotated[int, Field(ge=0), at_most(1 << 16)]
Maps = Annotated[int, Field(gt=0), at_most(1 << 30)]
Units = Annotated[int, Field(gt=0), at_most(1 << 40)]
Pictures = Annotated[int, Field(gt=0), at_most(1 << 40)]
Times = Annotated[int, Field(gt=0), at_most(10**6)]
Seed = Annotated[int, Field(ge=0), at_most((1 << 63) - 1)]
Threads = Annotated[int, Field(gt=0), at_most(4096)]
Positive = Annotated[float, Field(gt=0), at_most(1e30)]
NotNegative = Annotated[float, Field(ge=0), at_most(1e30)]
Span = Annotated[float, Field(gt=0), at_most(1e6)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, characters(4096)]
Texts = Annotated[list[Text], items(10_000)]

NAME_BYTES_MAX = 240
"""A file's name has at most 255 bytes, and that of a store is longer than the recipe's."""
RANKS_MAX = 1 << 20


def pair(value: int | tuple[int, int]) -> tuple[int, int]:
    """One number for both axes, or one each (y, x)."""
    return (value, value) if isinstance(value, int) else value


class Section(BaseModel):
    """A table of a recipe: strict types, no unknown keys."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class Data(Section):
    """Where pictures come from and how they are prepared."""

    source: Text | None = None
    """A folder or zip of pictures, an .npy or .npz file, MNIST's idx, CIFAR-10's binary files, or
    `builtin:demo`; `${NAME}` is replaced by the environment variable. Prepared on first use."""
    store: Text | None = None
    """A store that `cotswold prepare` wrote; used as it is. Either `source` or `store` is needed."""
    include: Texts = []
    """Patterns of paths inside the source that are read, such as `train/*`; empty for all."""
    exclude: Texts = []
    """Patterns of paths inside the source that are left out, such as `Faces/*`."""
    labels: Literal["none", "folders", "file"] = "none"
    """`folders`: a picture's parent folder is its label; `file`: the labels that npz, idx and CIFAR-10
    carry."""
    splits: Literal["auto", "random", "folders"] = "auto"
    """`folders`: the top folders (or files) are named train, validation (or valid, val) and test; `random`:
    `validation` and `test` are drawn at random, but what is named test stays there; `auto`: `folders` where
    every picture has such a name, otherwise `random`."""
    validation: Fraction = 0.05
    """The part of the training pictures held out for validation."""
    test: Fraction = 0.0
    """The part of the pictures held out for testing, where splits are drawn at random."""
    size: Pair = 200
    """Height and width in pixels; the picture is scaled to cover them and cut in the centre."""
    colour: Literal["rgb", "grey"] = "rgb"
    """Channels of the prepared pictures: 3 or 1."""
    contrast: bool = True
    """Subtract each picture's mean and divide by its standard deviation."""
    whiten: bool = True
    """Whiten by a filter made from the set's own power spectrum and colour covariance."""
    band: Annotated[float, Field(gt=0, le=1)] = 0.7
    """The upper end of the whitened band, as a fraction of the highest frequency (Nyquist) of the smaller
    side; the filter rolls off above it."""
    unit: bool = False
    """Scale every prepared picture to a root mean square of 1."""
    dtype: Literal["float16", "uint8"] = "float16"
    """How the store keeps values; uint8 keeps one scale for the whole set."""
    limit: Pictures | None = None
    """Read at most so many pictures."""


class Stack(Section):
    """One stack: local filters, L2 pooling, contrast normalisation."""

    field: Pair
    """Receptive field, pixels of the input map (height, width)."""
    step: Pair = 1
    """Distance between the fields of neighbouring blocks, pixels."""
    padding: Padding = 0
    """Zeros around the input map, pixels on each side."""
    block: Pair = (4, 4)
    """Rows and columns of neurons that share a field; they lie side by side in the output map."""
    maps: Maps = 8
    """Neurons at each position of the output map (the depth of a block)."""
    pool: Pixels = 5
    """Pooling window, pixels; 1 for none."""
    norm: Pixels = 5
    """Contrast normalisation window, pixels; 1 for none."""
    keep: bool = False
    """Pad pooling and normalisation so that the map keeps its size."""
    sparsity: NotNegative | None = None
    """λ of this stack; `[objective] sparsity` otherwise."""
    epochs: Span | None = None
    """Passes over the training pictures for this stack; `[training] epochs` otherwise."""
    rate: Positive | None = None
    """Step size for this stack; `[training] rate` otherwise."""

    def geometry(self, below: MapShape) -> StackGeometry:
        """The geometry on an input map; raises GeometryError where it does not fit."""
        (fy, fx), (sy, sx), (bh, bw) = pair(self.field), pair(self.step), pair(self.block)
        p = self.padding
        filters = BlockLocal(below, Window(fy, sy, p, p), Window(fx, sx, p, p), bh, bw, self.maps)
        return StackGeometry(filters, Smoothing(self.pool, self.keep), Smoothing(self.norm, self.keep))


class Local(Section):
    """Untied, locally connected layer."""

    type: Literal["local"]
    """A layer whose every position has its own filters."""
    channels: Maps
    """Output channels."""
    field: Pair
    """Kernel size, pixels."""
    step: Pair = 1
    """Stride, pixels."""
    padding: Padding = 0
    """Zeros on each side, pixels."""
    block: Pair = (1, 1)
    """Rows and columns of neurons that share a field."""


class Convolution(Section):
    """Ordinary convolution."""

    type: Literal["convolution"]
    """A layer that uses the same filters at every position."""
    channels: Maps
    """Output channels."""
    field: Pair
    """Kernel size, pixels."""
    step: Pair = 1
    """Stride, pixels."""
    padding: Padding = 0
    """Zeros on each side, pixels."""


class Full(Section):
    """Fully connected layer; flattens its input."""

    type: Literal["full"]
    """A layer in which every output reads every input."""
    units: Units
    """Outputs."""


class Pool(Section):
    """Pooling."""

    type: Literal["pool"]
    """Reduces a window of each map to one number."""
    kind: Literal["max", "average", "l2"] = "max"
    """What is kept of a window."""
    size: Pixels = 2
    """Window, pixels."""
    step: Pixels | None = None
    """Stride, pixels; the size of the window by default (1 for l2)."""


class Normalisation(Section):
    """Contrast or batch normalisation."""

    type: Literal["normalisation"]
    """Brings responses to a common scale."""
    kind: Literal["contrast", "batch"] = "batch"
    """`contrast`: local contrast normalisation over a window and all maps; `batch`: batch normalisation."""
    size: Pixels = 5
    """Window of contrast normalisation, pixels."""


class Dropout(Section):
    """Dropout."""

    type: Literal["dropout"]
    """Leaves out values at random while training."""
    probability: Fraction = 0.5
    """The part of the values that is left out."""


class Activation(Section):
    """Pointwise non-linearity."""

    type: Literal["relu", "tanh", "sigmoid"]
    """Which function is applied."""


Layer = Annotated[
    Local | Convolution | Full | Pool | Normalisation | Dropout | Activation, Field(discriminator="type")
]


class Network(Section):
    """Stacks (learnt without labels) or layers (learnt with labels), from the input upwards."""

    stacks: Annotated[list[Stack], items(100)] = []
    """Stacks of filters, pooling and normalisation, for `greedy` and `joint`."""
    layers: Annotated[list[Layer], items(1000)] = []
    """Layers of a supervised network; the layer of outputs, one a class, is added."""
    start: Text | None = None
    """For `supervised`: the directory of a run of stacks on whose output the layers stand. Its pictures must
    have been prepared by the same choices (size, colour, contrast, whiten, band, unit); the whitening filter
    itself is made anew from this recipe's pictures, unless both name one `store`."""
    tune: bool = False
    """For `start`: train the stacks' filters as well."""


class Objective(Section):
    """What is minimised."""

    sparsity: NotNegative = 0.1
    """λ of objective (1): the weight of the pooled responses against the squared error of reconstruction.
    Inputs of every stack are scaled to a root mean square of 1, so that λ means the same on every set."""
    ramp: Fraction = 0.3
    """The part of a stack's training over which λ rises to its value. Random filters under a strong λ
    would rather answer nothing; so they first learn to reconstruct."""
    epsilon: Positive = 1e-6
    """Added inside the root of pooling."""
    loss: Literal["softmax", "logistic"] = "softmax"
    """For `supervised`: softmax over the classes, or one-against-all logistic outputs."""


class Training(Section):
    """How it is minimised."""

    strategy: Literal["greedy", "joint", "supervised"]
    """`greedy`: stack after stack; `joint`: all stacks at once; `supervised`: with labels."""
    batch: Times = 96
    """Pictures in a mini-batch."""
    epochs: Span = 2.0
    """Passes over the training pictures (for each stack where `greedy`). Given with --set it is for every
    stack, as are `rate` and `sparsity`."""
    rate: Positive | None = None
    """Step size. For stacks in units of 1 / (α fan-in), so that one rate suits every set; 2 by default. For
    `supervised` the plain rate of SGD; 0.05 by default."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Part of the last step that is kept."""
    decay: NotNegative = 0.0
    """Weight decay, for `supervised`."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """How the rate falls from `rate` to 0 over the run."""
    warmup: Fraction = 0.02
    """The part of the run over which the rate rises from 0."""
    patience: Times | None = None
    """For `supervised`: stop after so many epochs without a better validation loss."""
    seed: Seed = 0
    """Seed of filters, of the order of pictures and of dropout."""
    checkpoint_minutes: Span = 5.0
    """Minutes between checkpoints; one is also written at the end of every stack."""
    checkpoints_kept: Times = 2
    """How many of the newest checkpoints stay on disk."""
    threads: Threads | None = None
    """Threads of computation, of each rank where there are several; all cores that the process is granted,
    divided among the ranks of a host, by default. `--threads` stands before it."""
    device: Text = "cpu"
    """A torch device, such as `cpu` or `cuda:0`."""
    offload: Literal["none", "disk"] = "none"
    """For `greedy` and `joint`. `none`: filters and momenta are in memory; `disk`: they are in files in the
    run's directory, and pass through memory once a pass, for stacks larger than memory."""

    @property
    def step_size(self) -> float:
        """The rate, or what suits the strategy."""
        return self.rate if self.rate is not None else 0.05 if self.strategy == "supervised" else 2.0


class Mesh(Section):
    """How the network is cut over several processes: every map in space, over rows and columns of ranks."""

    grid: Text | None = None
    """Rows and columns of ranks, such as `2x2`, or `auto`: the grid on which the simulator expects the
    shortest update, or `none`. One process where nothing is said; `auto` under torchrun, mpirun and srun."""
    patience: Span = 20.0
    """Seconds for which a rank may be silent before all others give it up and stop."""

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
    """Pictures."""
    network: Network
    """Layers."""
    objective: Objective = Objective()
    """What is minimised."""
    training: Training
    """How."""
    mesh: Mesh = Mesh()
    """On how many processes."""
    evaluate: Annotated[list[Evaluation], items(1000)] = []
    """Selectivity tests that `cotswold evaluate RUN` runs without further words."""
    price: Price = Price()
    """Money."""

    @model_validator(mode="after")
    def _belongs_together(self) -> Recipe:
        network, strategy = self.network, self.training.strategy
        if not re.fullmatch(r"\w[\w .+-]*", self.name) or len(self.name.encode()) > NAME_BYTES_MAX:
            raise ValueError(
                f"name is {shown(self.name)}, and directories are called after it; use letters, digits, _, - "
                f"and ., at most {NAME_BYTES_MAX} bytes"
            )
        if (self.data.source is None) == (self.data.store is None):
            raise ValueError("[data] needs either source or store; give one of them")
        if self.training.offload == "disk":
            if self.mesh.grid not in (None, "1x1"):
                raise ValueError(
                    'training.offload = "disk" is for one process, --grid none; or set training.offload=none'
                )
            if strategy == "supervised":
                raise ValueError("training.offload belongs to strategies greedy and joint; take it out")
            if self.training.device != "cpu":
                raise ValueError('training.offload = "disk" computes on the CPU; set training.device to cpu')
        if strategy == "supervised":
            if network.stacks:
                raise ValueError(
                    "strategy supervised learns [[network.layers]]; put stacks into a run of their "
                    "own and name it in network.start"
                )
            if self.data.store is None and self.data.labels == "none":
                raise ValueError("strategy supervised needs labels; set data.labels to folders or file")
        else:
            if not network.stacks:
                raise ValueError(f"strategy {strategy} learns [[network.stacks]]; give at least one")
            if network.layers or network.start is not None:
                raise ValueError(
                    f"strategy {strategy} takes [[network.stacks]] only; layers and start belong to "
                    "strategy supervised"
                )
            for name, value in (("decay", self.training.decay), ("patience", self.training.patience)):
                if value:
                    raise ValueError(
                        f"training.{name} belongs to strategy supervised; take it out for {strategy}"
                    )
        if network.tune and network.start is None:
            raise ValueError("network.tune needs network.start, a run of stacks to tune")
        return self

    @property
    def input(self) -> MapShape:
        """The map that the network reads."""
        height, width = pair(self.data.size)
        return MapShape(3 if self.data.colour == "rgb" else 1, height, width)

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


def _check_livable(stack: StackGeometry) -> None:
    """Raise GeometryError for a stack that no machine could hold."""
    weights, values = stack.filters.parameters, max(stack.input.size, stack.responses.size)
    if max(weights, values) > VALUES_MAX:
        what = f"{weights:.3g} weights" if weights > VALUES_MAX else f"a map of {values:.3g} values"
        raise GeometryError(f"it would have {what}, more than any machine holds; make it smaller")
