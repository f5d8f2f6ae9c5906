"""Operands beyond 2³¹ numbers; only the pages at both ends of their memory are touched."""

from __future__ import annotations

import mmap
import sys

import pytest
import torch
from tests.support.kernels.operations import (
    DTYPES,
    KERNELS,
    forced,
    operands,
    poisoned,
    processors,
    run,
    same_bits,
)
from torch import Tensor

from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels.machine.processor import Processor

BEYOND = 2**31 + 7
NO_RESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
"""Value of MAP_NORESERVE, which not every Python names."""
ROWS_APART = BlockLocal(MapShape(3, 3, 4), Window(2, 1, 1, 0), Window(3, 1), rows=1, columns=2, depth=5)
"""A layer for maps whose rows are far apart."""
CHANNELS_APART = BlockLocal(MapShape(3, 1, 1), Window(1), Window(1), rows=1, columns=1, depth=11)
"""A layer for maps whose channels are far apart."""
CORNER = BlockLocal(
    MapShape(2, 1, 1), Window(1024, 1, 1023, 1), Window(1024, 1, 1023, 0), rows=1, columns=1, depth=1030
)
"""Two blocks whose fields meet the map in a corner only, so that almost no weight is touched."""


def untouched(count: int, dtype: torch.dtype) -> Tensor:
    """Return zeros that take no memory until they are touched."""
    size = count * dtype.itemsize
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    except OSError as error:
        pytest.skip(f"no {size >> 30} GiB of addresses: {error}")
    return torch.frombuffer(memory, dtype=dtype)


def far_apart(x: Tensor) -> Tensor:
    """Return the same map with its channels far apart, or its rows if it has several."""
    images, channels, height, width = x.shape
    if height * width == 1:
        memory = untouched((channels - 1) * BEYOND + images, x.dtype)
        view = memory.as_strided(x.shape, (1, BEYOND, channels * BEYOND, channels * BEYOND))
    else:
        memory = untouched(height * BEYOND, x.dtype)
        view = memory.as_strided(x.shape, (1, images, BEYOND, channels * images))
    return view.copy_(x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", [ROWS_APART, CHANNELS_APART], ids=["rows", "channels"])
@pytest.mark.parametrize("processor", processors(), ids=lambda one: one.isa)
@pytest.mark.parametrize(("operation", "few"), KERNELS)
def test_a_map_may_reach_beyond_what_32_bits_count(
    operation: str, few: bool | None, processor: Processor, layer: BlockLocal, dtype: torch.dtype
) -> None:
    setting = forced(8, 3, processor=processor, few=few)
    pair = operands(operation, layer, 21, dtype)
    expected = run(operation, layer, pair, setting)
    first, second = (far_apart(x) if x.dim() == 4 else x for x in pair)
    out = poisoned(operation, layer, first)
    out = far_apart(out) if out.dim() == 4 else out
    assert same_bits(run(operation, layer, (first, second), setting, out), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("operation", "few"), KERNELS)
def test_filters_may_reach_beyond_what_32_bits_count(
    operation: str, few: bool | None, dtype: torch.dtype
) -> None:
    small = BlockLocal(CORNER.input, Window(2, 1, 1, 1), Window(1), rows=1, columns=1, depth=CORNER.depth)
    assert small.grid == CORNER.grid == (2, 1)
    assert CORNER.parameters > 2**32
    filters = untouched(CORNER.parameters, dtype).view(CORNER.filters_shape)
    met = filters[
        :, :, -2:, -2:
    ]  # the first block meets the map with its last row, the second with the one before
    setting = forced(8, 3, few=few)
    first, second = operands(operation, small, 9, dtype)
    if operation == "outer":
        met.fill_(float("nan"))
        expected = run(operation, small, (first, second), setting)
        run(operation, CORNER, (first, second), setting, filters)
        assert same_bits(met, expected)
    else:
        met.copy_(second)
        expected = run(operation, small, (first, second), setting)
        assert same_bits(run(operation, CORNER, (first, filters), setting), expected)
