"""The layers whose operations are measured.

Knows: sizes. Does not know: tensors, time.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window
from cotswold.recipe import load


@dataclass(frozen=True)
class Shape:
    """A layer and a batch. ``stack`` is there where pooling and normalisation follow."""

    name: str
    group: str
    layer: BlockLocal
    images: int
    stack: StackGeometry | None = None

    @property
    def foreign(self) -> bool:
        """Whether maps come and go as contiguous NCHW, as in anybody's model."""
        return self.stack is None

    @property
    def flops(self) -> int:
        """FLOPs of one product over the batch."""
        return self.images * self.layer.product_flops


def shapes() -> list[Shape]:
    """The paper's first stack on a map of 60 pixels, the stacks of `faces`, ordinary untied layers."""
    faces = load("faces")
    return [
        _paper(3, 60, 96),
        _paper(8, 60, 96),
        *(
            Shape(f"faces, stack {number}", "recipe", geometry.filters, faces.training.batch, geometry)
            for number, geometry in enumerate(faces.stack_geometries(), 1)
        ),
        _untied(16, 16, 32, 3, 256),
        _untied(32, 32, 32, 3, 128),
        _untied(64, 64, 16, 3, 128),
        _untied(16, 32, 32, 5, 64),
        _untied(32, 32, 28, 5, 128),
        _untied(64, 64, 14, 5, 32),
        _untied(16, 64, 24, 7, 64),
        _untied(32, 64, 16, 7, 256),
    ]


def quick_shapes() -> list[Shape]:
    """One small layer of each kind, to try the command."""
    return [_paper(3, 28, 32), _untied(16, 16, 12, 3, 32)]


def _paper(channels: int, pixels: int, images: int) -> Shape:
    """f = 20, s = 4, blocks of 4 x 4 x 8; the paper's own map is 200 pixels wide and has the same blocks."""
    window = Window(20, 4)
    layer = BlockLocal(MapShape(channels, pixels, pixels), window, window, 4, 4, 8)
    wide = layer.output.width >= 13  # both steps of the normalisation and the pooling take 4 off each
    smoothing = Smoothing(5, keep=not wide)
    stack = StackGeometry(layer, smoothing, smoothing)
    return Shape(f"paper, 20 x 20 x {channels}, blocks 4 x 4 x 8", "paper", layer, images, stack)


def _untied(channels: int, outputs: int, pixels: int, field: int, images: int) -> Shape:
    window = Window(field)
    layer = BlockLocal(MapShape(channels, pixels, pixels), window, window, 1, 1, outputs)
    return Shape(f"untied {field} x {field}, {channels} to {outputs}, map {pixels}", "untied", layer, images)
