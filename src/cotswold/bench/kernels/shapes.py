"""The layers whose operations are measured.

Knows: sizes. Does not know: tensors, time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window
from cotswold.recipe import load

SMALL_BATCHES = (1, 4)
"""Images of a small batch."""


@dataclass(frozen=True)
class Shape:
    """A layer and a batch; with ``stack`` if pooling and normalisation follow."""

    name: str
    group: str
    layer: BlockLocal
    images: int
    stack: StackGeometry | None = None

    @property
    def flops(self) -> int:
        """FLOPs of one product over the batch."""
        return self.images * self.layer.product_flops


@dataclass(frozen=True)
class Perceptron:
    """A network of two fully connected layers, and a number of samples."""

    inputs: int
    hidden: int
    outputs: int
    samples: int

    @property
    def name(self) -> str:
        """The name in the notation of Bunyip's authors."""
        return f"{self.inputs}-{self.hidden}-{self.outputs}"

    @property
    def flops(self) -> int:
        """FLOPs of value and gradient, without the gradient by the inputs (Aberdeen et al. 2000, section
        3)."""
        return self.samples * (4 * self.inputs * self.hidden + 6 * self.hidden * self.outputs)


BATCHES = (320, 1280, 2560)
"""Samples per call; Bunyip's processors took 320 at a time."""
BUNYIP = tuple(Perceptron(400, 480, 3203, samples) for samples in BATCHES)
SIZES = (64, 128, 256, 512, 1024, 2048)
"""Sizes of square matrices for the curve of rates."""


def paper_shapes() -> list[Shape]:
    """The paper's stacks with their own fields and blocks, on smaller maps."""
    return [paper(3, 60, 96), paper(8, 60, 96), _large()]


def paper_maps() -> Shape:
    """The paper's first stack on its own map of 200 pixels, for passes over maps."""
    return paper(3, 200, 96)


def recipe_shapes() -> list[Shape]:
    """The stacks of the recipe `faces`."""
    faces = load("faces")
    return [
        Shape(f"faces, stack {number}", "recipe", geometry.filters, faces.training.batch_size, geometry)
        for number, geometry in enumerate(faces.stack_geometries(), 1)
    ]


def untied_shapes() -> list[Shape]:
    """Ordinary untied layers."""
    return [
        untied(16, 16, 32, 3, 256),
        untied(32, 32, 24, 3, 128),
        untied(64, 64, 16, 3, 32),
        untied(16, 32, 24, 5, 64),
        untied(32, 32, 20, 5, 128),
        untied(64, 64, 14, 5, 32),
        untied(16, 64, 20, 7, 64),
        untied(32, 64, 16, 7, 256),
    ]


def few_shapes() -> list[Shape]:
    """Some untied layers with very few images."""
    layers = (untied(16, 16, 32, 3, 1), untied(16, 32, 24, 5, 1), untied(64, 64, 14, 5, 1))
    return [replace(shape, group="few", images=images) for shape in layers for images in SMALL_BATCHES]


def paper(channels: int, pixels: int, images: int) -> Shape:
    """f = 20, s = 4, blocks of 4 x 4 x 8; the paper's own map is 200 pixels wide and has the same blocks."""
    window = Window(20, 4)
    layer = BlockLocal(MapShape(channels, pixels, pixels), window, window, 4, 4, 8)
    wide = layer.output.width >= 13  # normalisation and pooling each take 4 off
    smoothing = Smoothing(5, keep=not wide)
    stack = StackGeometry(layer, smoothing, smoothing)
    return Shape(f"20 x 20 x {channels}, blocks 4 x 4 x 8", "paper", layer, images, stack)


def _large() -> Shape:
    """f = 32, c = 18, blocks of 4 x 4 x 18: nine of the 1296 blocks, 191 MB of filters."""
    window, smoothing = Window(32, 4), Smoothing(5, keep=True)
    layer = BlockLocal(MapShape(18, 40, 40), window, window, 4, 4, 18)
    stack = StackGeometry(layer, smoothing, smoothing)
    return Shape("32 x 32 x 18, blocks 4 x 4 x 18", "paper", layer, 96, stack)


def untied(channels: int, outputs: int, pixels: int, field: int, images: int) -> Shape:
    """A layer with one neuron per map and place."""
    window = Window(field)
    layer = BlockLocal(MapShape(channels, pixels, pixels), window, window, 1, 1, outputs)
    return Shape(f"{field} x {field}, {channels} to {outputs}, map {pixels}", "untied", layer, images)


def dense_layer(inputs: int, outputs: int) -> BlockLocal:
    """A fully connected layer: one field that covers the whole map."""
    return BlockLocal(MapShape(inputs, 1, 1), Window(1), Window(1), 1, 1, outputs)
