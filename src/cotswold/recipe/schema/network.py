"""`[network]`: stacks, layers, or a module from Python.

Knows: the fields of each kind of layer, the geometry of a stack. Does not know: tensors.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window
from cotswold.recipe.bounds import items
from cotswold.recipe.schema.fields import (
    Channels,
    Features,
    Fraction,
    NotNegative,
    Padding,
    Pair,
    Pixels,
    Positive,
    Section,
    Span,
    Text,
    pair,
)


def windows(
    size: int | tuple[int, int],
    stride: int | tuple[int, int],
    padding: int | Literal["same"],
    below: MapShape,
) -> tuple[Window, Window]:
    """The windows (y, x) of a stack or layer on a map; "same" pads so that a map of n pixels gives
    ceil(n / stride) outputs, with the odd zero after the map."""
    axes = zip(pair(size), pair(stride), (below.height, below.width), strict=True)
    if padding == "same":
        y, x = (Window.same(extent, step, over=over) for extent, step, over in axes)
    else:
        y, x = (Window(extent, step, padding, padding) for extent, step, _ in axes)
    return y, x


class Stack(Section):
    """One stack: local filters, L2 pooling, contrast normalisation."""

    field: Pair
    """Receptive field, pixels of the input map (height, width)."""
    stride: Pair = 1
    """Distance between the fields of neighbouring blocks, pixels."""
    padding: Padding = 0
    """Zeros around the input map, pixels on each side; "same" for as many as give ceil(n / stride) blocks
    on a map of n pixels, the odd one after the map."""
    block: Pair = (4, 4)
    """Rows and columns of neurons that share a field; they lie side by side in the output map."""
    channels: Channels = 8
    """Neurons at each position of the output map (the depth of a block)."""
    pool: Pixels = 5
    """Pooling window, pixels; 1 for none."""
    norm: Pixels = 5
    """Contrast normalisation window, pixels; 1 for none."""
    smoothing_padding: Literal["valid", "same"] = "valid"
    """Of pooling and normalisation. `valid`: windows lie inside the map, which shrinks; `same`: zeros around
    it keep its size."""
    sparsity: NotNegative | None = None
    """λ of this stack; `[objective] sparsity` otherwise."""
    epochs: Span | None = None
    """Passes over the training samples for this stack; `[training] epochs` otherwise."""
    relative_rate: Positive | None = None
    """Learning rate of this stack, in units of 1 / (α fan-in); `[training] relative_rate` otherwise."""

    def geometry(self, below: MapShape) -> StackGeometry:
        """The geometry on an input map; raises GeometryError where it does not fit."""
        rows, columns = pair(self.block)
        y, x = windows(self.field, self.stride, self.padding, below)
        keep = self.smoothing_padding == "same"
        filters = BlockLocal(below, y, x, rows, columns, self.channels)
        return StackGeometry(filters, Smoothing(self.pool, keep), Smoothing(self.norm, keep))


class Local(Section):
    """Untied, locally connected layer."""

    type: Literal["local"] = "local"
    """A layer whose every position has its own filters."""
    channels: Channels
    """Output channels."""
    kernel_size: Pair
    """Receptive field, pixels."""
    stride: Pair = 1
    """Distance between the fields of neighbouring blocks, pixels."""
    padding: Padding = 0
    """Zeros on each side, pixels; "same" for as many as give ceil(n / stride) blocks on a map of n pixels,
    the odd one after the map."""
    block: Pair = (1, 1)
    """Rows and columns of neurons that share a field."""


class Convolution(Section):
    """Ordinary convolution."""

    type: Literal["convolution"] = "convolution"
    """A layer that uses the same filters at every position."""
    channels: Channels
    """Output channels."""
    kernel_size: Pair
    """Receptive field, pixels."""
    stride: Pair = 1
    """Distance between neighbouring fields, pixels."""
    padding: Padding = 0
    """Zeros on each side, pixels; "same" for as many as give ceil(n / stride) outputs on a map of n pixels,
    the odd one after the map (also with a stride, where PyTorch has no such word)."""


class Linear(Section):
    """Fully connected layer; flattens its input."""

    type: Literal["linear"] = "linear"
    """A layer in which every output reads every input."""
    features: Features
    """Outputs."""


class Pool(Section):
    """Pooling."""

    type: Literal["pool"] = "pool"
    """Reduces a window of each map to one number."""
    kind: Literal["max", "average", "l2"] = "max"
    """What is kept of a window."""
    kernel_size: Pixels = 2
    """Window, pixels."""
    stride: Pixels | None = None
    """Distance between windows, pixels; the size of the window by default (1 for l2)."""


class Normalisation(Section):
    """Contrast or batch normalisation."""

    type: Literal["normalisation"] = "normalisation"
    """Brings responses to a common scale."""
    kind: Literal["contrast", "batch"] = "batch"
    """`contrast`: local contrast normalisation over a window and all maps; `batch`: batch normalisation."""
    size: Pixels = 5
    """Window of contrast normalisation, pixels."""


class Dropout(Section):
    """Dropout."""

    type: Literal["dropout"] = "dropout"
    """Leaves out values at random while training."""
    probability: Fraction = 0.5
    """The part of the values that is left out."""


class Activation(Section):
    """Pointwise non-linearity."""

    type: Literal["relu", "tanh", "sigmoid"]
    """Which function is applied."""


Layer = Annotated[
    Local | Convolution | Linear | Pool | Normalisation | Dropout | Activation, Field(discriminator="type")
]


class Network(Section):
    """Stacks (learnt without labels) or layers (learnt with labels), from the input upwards."""

    stacks: Annotated[list[Stack], items(100)] = Field(default_factory=list)
    """Stacks of filters, pooling and normalisation, for `greedy` and `joint`."""
    layers: Annotated[list[Layer], items(1000)] = Field(default_factory=list)
    """Layers of a supervised network; the layer of outputs, one a class, is added."""
    output: Literal["linear", "tanh", "sigmoid"] = "linear"
    """What is applied to the outputs of layers. `linear`: nothing, for `cross_entropy` and `logistic`, which
    have their own; `tanh` and `sigmoid` go with `squared`."""
    output_scale: NotNegative = 1.0
    """What the initial weights of the layer of outputs are multiplied by. With `squared` and many classes 0
    is better: otherwise the first iterations unlearn what the outputs say at random."""
    start: Text | None = None
    """For `supervised`: the directory of a run of stacks on whose output the layers stand, or a recipe of
    stacks (a shipped name, or a file that ends in .toml), whose filters are then random, by this recipe's
    seed. Pictures must have been prepared by the same choices (size, colour, contrast, whiten, band, unit);
    the whitening filter itself is made anew from this recipe's pictures, unless both name one `store`."""
    tune: bool = False
    """For `start`: train the stacks' filters as well."""
    module: Text | None = None
    """For `supervised`: the name of a module that a Python program gives in place of layers; such a run is
    resumed from Python only."""
