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
    """Return the windows (y, x) of a stack or layer on a map.

    "same" pads so that a map of n pixels gives ceil(n / stride) outputs, with the odd zero after the map.
    """
    axes = zip(pair(size), pair(stride), (below.height, below.width), strict=True)
    if padding == "same":
        y, x = (Window.same_padding(extent, step, extent=over) for extent, step, over in axes)
    else:
        y, x = (Window(extent, step, padding, padding) for extent, step, _ in axes)
    return y, x


class Stack(Section):
    """One stack: local filters, L2 pooling, contrast normalisation."""

    kernel_size: Pair
    """Receptive field in pixels of the input map (height, width)."""
    stride: Pair = 1
    """Distance between the fields of neighbouring blocks, in pixels."""
    padding: Padding = 0
    """Zeros around the input map, in pixels on each side; "same" gives ceil(n / stride) blocks on a map of
    n pixels, with the odd zero after the map.
    """
    block: Pair = (4, 4)
    """Rows and columns of neurons that share a receptive field; they are neighbours in the output map."""
    channels: Channels = 8
    """Neurons at each position of the output map (the depth of a block)."""
    pool: Pixels = 5
    """Pooling window in pixels; 1 for no pooling."""
    norm: Pixels = 5
    """Window of contrast normalisation in pixels; 1 for no normalisation."""
    pool_padding: Literal["valid", "same"] = "valid"
    """Padding of pooling and normalisation. `valid`: windows lie inside the map, which shrinks; `same`:
    zero padding keeps the size.
    """
    sparsity: NotNegative | None = None
    """λ of this stack. Default: `[objective] sparsity`."""
    epochs: Span | None = None
    """Passes over the training samples for this stack. Default: `[training] epochs`."""
    relative_rate: Positive | None = None
    """Learning rate of this stack in units of 1 / (α fan-in). Default: `[training] relative_rate`."""

    def geometry(self, below: MapShape) -> StackGeometry:
        """Return the geometry on an input map; raises GeometryError if the stack does not fit."""
        rows, columns = pair(self.block)
        y, x = windows(self.kernel_size, self.stride, self.padding, below)
        keep = self.pool_padding == "same"
        filters = BlockLocal(below, y, x, rows, columns, self.channels)
        return StackGeometry(filters, Smoothing(self.pool, keep), Smoothing(self.norm, keep))


class Local(Section):
    """Untied, locally connected layer."""

    type: Literal["local"] = "local"
    """A layer with separate filters at every position."""
    channels: Channels
    """Output channels."""
    kernel_size: Pair
    """Receptive field in pixels."""
    stride: Pair = 1
    """Distance between the fields of neighbouring blocks, in pixels."""
    padding: Padding = 0
    """Zeros on each side, in pixels; "same" gives ceil(n / stride) blocks on a map of n pixels, with the
    odd zero after the map.
    """
    block: Pair = (1, 1)
    """Rows and columns of neurons that share a receptive field."""


class Convolution(Section):
    """Ordinary convolution."""

    type: Literal["convolution"] = "convolution"
    """A layer with the same filters at every position."""
    channels: Channels
    """Output channels."""
    kernel_size: Pair
    """Receptive field in pixels."""
    stride: Pair = 1
    """Distance between neighbouring fields, in pixels."""
    padding: Padding = 0
    """Zeros on each side, in pixels; "same" gives ceil(n / stride) outputs on a map of n pixels, with the
    odd zero after the map (also with a stride, which PyTorch does not support).
    """


class Linear(Section):
    """Fully connected layer; flattens its input."""

    type: Literal["linear"] = "linear"
    """A layer in which every output reads every input."""
    features: Features
    """Number of outputs."""


class Pool(Section):
    """Pooling layer."""

    type: Literal["pool"] = "pool"
    """Reduces each window of a map to one number."""
    kind: Literal["max", "average", "l2"] = "max"
    """Reduction of a window."""
    kernel_size: Pixels = 2
    """Window in pixels."""
    stride: Pixels | None = None
    """Distance between windows in pixels. Default: the size of the window (1 for l2)."""


class Normalisation(Section):
    """Contrast or batch normalisation."""

    type: Literal["normalisation"] = "normalisation"
    """Normalises responses to a common scale."""
    kind: Literal["contrast", "batch"] = "batch"
    """`contrast`: local contrast normalisation over a window and all channels; `batch`: batch
    normalisation.
    """
    size: Pixels = 5
    """Window of contrast normalisation in pixels."""


class Dropout(Section):
    """Dropout layer."""

    type: Literal["dropout"] = "dropout"
    """Sets random values to zero during training."""
    probability: Fraction = 0.5
    """Fraction of values set to zero."""


class Activation(Section):
    """Pointwise non-linearity."""

    type: Literal["relu", "tanh", "sigmoid"]
    """The function."""


Layer = Annotated[
    Local | Convolution | Linear | Pool | Normalisation | Dropout | Activation, Field(discriminator="type")
]


class Network(Section):
    """Stacks (trained without labels) or layers (trained with labels), from the input upwards."""

    stacks: Annotated[list[Stack], items(100)] = Field(default_factory=list)
    """Stacks of filters, pooling and normalisation, for `greedy` and `joint`."""
    layers: Annotated[list[Layer], items(1000)] = Field(default_factory=list)
    """Layers of a supervised network; the output layer, with one output per class, is added."""
    output: Literal["linear", "tanh", "sigmoid"] = "linear"
    """Activation of the output layer. `linear`: none, for `cross_entropy` and `bce_with_logits`, which
    include their own; `tanh` and `sigmoid` are for `squared_error`.
    """
    output_scale: NotNegative = 1.0
    """Factor of the output layer's initial weights. With `squared_error` and many classes use 0:
    otherwise the first iterations only unlearn the random outputs.
    """
    backbone: Text | None = None
    """For `supervised`: stacks to build the layers on. Either the directory of a run of stacks; or a
    recipe of stacks (a shipped name, or a file that ends in .toml), with random filters by this recipe's
    seed. Both recipes must prepare images alike: size, colour, per_image_standardise, whiten,
    whiten_cutoff, unit_rms. The whitening filter is computed again from this recipe's images, unless both
    name the same `store`.
    """
    finetune: bool = False
    """For `backbone`: train the stacks' filters too."""
    module: Text | None = None
    """For `supervised`: name of a module that a Python program provides in place of layers; such a run can
    only be resumed from Python.
    """
