"""Layers and maps for the tests of operations.

Knows: hypothesis strategies over geometries small enough for dense references. Does not know: the tests.
"""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from cotswold.geometry import BlockLocal, MapShape, Smoothing, Window

ODD = BlockLocal(MapShape(2, 7, 6), Window(3, 2, 1, 1), Window(4, 1, 2, 1), rows=2, columns=1, depth=3)
"""A rectangular layer with uneven padding and another step along each axis."""
PLAIN = BlockLocal(MapShape(3, 8, 8), Window(4, 2), Window(4, 2), rows=2, columns=2, depth=2)
"""A layer with overlapping fields and without padding."""
SPARSE = BlockLocal(MapShape(1, 9, 5), Window(2, 3), Window(1, 2), rows=1, columns=1, depth=2)
"""A layer with steps longer than its fields: no neuron reads some inputs."""
DEEP = BlockLocal(MapShape(1, 4, 4), Window(4, 1, 3, 3), Window(4, 1, 3, 3), rows=1, columns=2, depth=1)
"""A layer whose fields all meet padding."""
WIDE = BlockLocal(MapShape(8, 7, 11), Window(3, 2, 1, 1), Window(5, 2, 2, 1), rows=2, columns=2, depth=3)
"""A layer with field rows wide enough to be multiplied one by one."""
LAYERS = [ODD, PLAIN, SPARSE, DEEP, WIDE]


@st.composite
def windows(draw: st.DrawFn, extent: int) -> Window:
    """Draw windows that fit an axis, including padding and steps larger than the field."""
    size = draw(st.integers(1, min(extent + 2, 5)))
    low, high = draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))
    if size > extent + low + high:
        size, low, high = extent, 0, 0
    return Window(size, draw(st.integers(1, 4)), low, high)


@st.composite
def layers(draw: st.DrawFn) -> BlockLocal:
    """Draw any layer on a small map."""
    shape = MapShape(draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(1, 9)))
    return BlockLocal(
        shape,
        draw(windows(shape.height)),
        draw(windows(shape.width)),
        draw(st.integers(1, 2)),
        draw(st.integers(1, 2)),
        draw(st.integers(1, 3)),
    )


@st.composite
def smoothed_maps(draw: st.DrawFn) -> tuple[Smoothing, MapShape]:
    """Draw a smoothing and a map that it fits twice."""
    size, keep = draw(st.integers(1, 5)), draw(st.booleans())
    least = 1 if keep else 2 * size - 1
    height, width = draw(st.integers(least, least + 5)), draw(st.integers(least, least + 5))
    return Smoothing(size, keep), MapShape(draw(st.integers(1, 3)), height, width)


def random_map(shape: MapShape, images: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return Gaussian maps ``(image, channel, y, x)``, contiguous as torch makes them."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(
        images, shape.channels, shape.height, shape.width, generator=generator, dtype=torch.float64
    )
    return values.to(dtype)


def random_weights(layer: BlockLocal, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return Gaussian filters of a layer."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(layer.filters_shape, generator=generator, dtype=torch.float64).to(dtype)
