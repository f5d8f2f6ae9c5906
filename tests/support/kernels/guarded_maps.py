"""Runs pooling, contrast normalisation and norms between protected pages; a script.

Knows: `guarded`. Does not know: right results, except those of the same kernel on ordinary memory.

``python -m tests.support.kernels.guarded_maps SEED CASES`` prints each case before it runs it, so that the
last line names the one that crashed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import torch
from tests.support.kernels.guarded import Guard, scratch_of
from tests.support.kernels.operations import DTYPES, processors, same_bits
from torch import Tensor

from cotswold import ops
from cotswold.geometry import MapShape, Smoothing, Window
from cotswold.kernels.machine import execution
from cotswold.kernels.maps import max_pooling, norms, pooling
from cotswold.kernels.maps.normalisation import Normalisation
from cotswold.kernels.maps.tasks import Workers
from cotswold.ops.contrast import _bands

Work = Callable[[list[Tensor], list[Tensor]], None]
"""Reads the first tensors, writes the second."""


def random_maps(shapes: list[MapShape], images: int, dtype: torch.dtype) -> list[Tensor]:
    """Return maps, images last."""
    sizes = [(images, one.channels, one.height, one.width) for one in shapes]
    return [ops.images_last(torch.randn(size, dtype=dtype) + 2) for size in sizes]


def between(guard: Guard, pitch: int, work: Work, read: list[Tensor], written: list[Tensor]) -> None:
    """Run on ordinary and on guarded memory; the bits must be the same."""
    work(read, written)
    placed = [guard.like(one, pitch, True) for one in read]
    into = [guard.like(one, pitch, False) for one in written]
    with scratch_of(guard):
        work(placed, into)
    assert all(map(same_bits, into, written)), "another result"


def smoothed(chance: random.Random, guard: Guard, dtype: torch.dtype) -> None:
    """Run pooling, normalisation and their gradients on one random map."""
    images, size, keep = chance.randint(1, 40), chance.randint(1, 9), chance.random() < 0.5
    least = 1 if keep else 2 * size - 1
    shape = MapShape(chance.randint(1, 6), *(chance.randint(least, least + 14) for _ in range(2)))
    window, pitch = Smoothing(size, keep), chance.choice([0, 0, 3])
    inner = window.output(shape)
    outer = window.output(inner)
    processor, threads = chance.choice(processors()), chance.choice([1, 2])
    print(images, shape, window, pitch, dtype, processor.isa, threads, guard.at_end, flush=True)
    who = Workers(images, str(dtype).removeprefix("torch."), processor, threads)
    x, pooled, grad, above = random_maps([shape, inner, inner, outer], images, dtype)
    norm = Normalisation(shape, window, 0.01, _bands(shape, window, dtype), who)
    pooled = pooled.abs() + 1

    def pool(read: list[Tensor], written: list[Tensor]) -> None:
        pooling.pool(read[0], written[0], window, 0.01, who)

    def slope(read: list[Tensor], written: list[Tensor]) -> None:
        first = read[0] if len(read) == 3 else None
        pooling.pool_gradient(first, read[-2], read[-1], written[0], window, 0.3, who)

    def normalise(read: list[Tensor], written: list[Tensor]) -> None:
        norm.normalise(read[0], written[0])

    def gradient(read: list[Tensor], written: list[Tensor]) -> None:
        norm.gradient(read[0], read[1], written[0])

    works: list[tuple[Work, list[Tensor], Tensor]] = [
        (pool, [x], pooled),
        (slope, [grad, pooled, x], x),
        (slope, [pooled, x], x),
        (normalise, [x], above),
        (gradient, [above, x], x),
    ]
    for work, read, like in works:
        between(guard, pitch, work, read, [ops.images_last(torch.empty_like(like))])


def maxima(chance: random.Random, guard: Guard, dtype: torch.dtype) -> None:
    """Run max pooling and its gradient on one random map."""
    images, shape = chance.randint(1, 80), MapShape(*(chance.randint(1, 12) for _ in range(3)))
    sizes = [chance.randint(1, min(extent, 4)) for extent in (shape.height, shape.width)]
    y, x = (Window(one, chance.randint(1, 3), one // 2, one // 2) for one in sizes)
    pitch, relu = chance.choice([0, 0, 3]), chance.random() < 0.5
    processor, threads = chance.choice(processors()), chance.choice([1, 2])
    print(images, shape, y, x, pitch, relu, dtype, processor.isa, threads, guard.at_end, flush=True)
    who = Workers(images, str(dtype).removeprefix("torch."), processor, threads)
    outer = MapShape(shape.channels, y.outputs(shape.height), x.outputs(shape.width))
    map_, best = random_maps([shape, outer], images, dtype)
    places = torch.randint(0, y.size * x.size, best.permute(2, 3, 1, 0).shape).to(torch.uint8)
    places = places.permute(3, 2, 0, 1)

    def pool(read: list[Tensor], written: list[Tensor]) -> None:
        max_pooling.max_pool(read[0], written[0], written[1], (y, x), relu, who)

    def slope(read: list[Tensor], written: list[Tensor]) -> None:
        max_pooling.max_pool_gradient(read[0], read[1], written[0], (y, x), who)

    between(guard, pitch, pool, [map_], [torch.empty_like(best), torch.empty_like(places)])
    between(guard, pitch, slope, [best, places], [torch.empty_like(map_)])


def filtered(chance: random.Random, guard: Guard, dtype: torch.dtype) -> None:
    """Run norms of filters, and filters times numbers."""
    shape = (chance.randint(1, 3), chance.randint(1, 80), chance.randint(1, 70))
    blocks = norms.Matrices(*shape, str(dtype).removeprefix("torch."))
    processor = chance.choice(processors())
    print(blocks, processor.isa, guard.at_end, flush=True)
    filters, scales = torch.randn(shape, dtype=dtype), torch.randn(shape[0], shape[2], dtype=dtype)

    def of(kernel: Callable[..., None]) -> Work:
        def work(read: list[Tensor], written: list[Tensor]) -> None:
            kernel(*(one.data_ptr() for one in (*read, *written)), blocks, processor, 1)

        return work

    between(guard, 0, of(norms.norms), [filters], [torch.empty_like(scales)])
    between(guard, 0, of(norms.scaled), [filters, scales], [torch.empty_like(filters)])


def main(seed: str, cases: int) -> None:
    """Run cases that must not crash."""
    chance = random.Random(seed)
    torch.manual_seed(0)
    execution.SERIAL_BELOW = 1
    for _ in range(cases):
        dtype = chance.choice(DTYPES)
        smoothed(chance, Guard(chance.random() < 0.5), dtype)
        maxima(chance, Guard(chance.random() < 0.5), dtype)
        filtered(chance, Guard(chance.random() < 0.5), dtype)
    print("alive")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
