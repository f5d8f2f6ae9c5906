"""L2 pooling by CPU kernels: forward, and the gradient with respect to its input.

Knows: the cut of a map into tasks, the kernel of each. Does not know: autograd.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

from cotswold.geometry import MapShape, Smoothing
from cotswold.kernels.compile import library, self_test_reference
from cotswold.kernels.compile.emit import BYTES, Lanes
from cotswold.kernels.compile.jobs import bits, cached_kernel, prepare_kernel
from cotswold.kernels.compile.self_test_reference import Array
from cotswold.kernels.machine.execution import LINE, PreparedKernel, threads_for
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.maps.pooling_block import JOB, PENALTY, POOL, SLOPE, PoolConfig, PoolKind
from cotswold.kernels.maps.pooling_walk import scratch_elements, write_pooling
from cotswold.kernels.maps.tasks import Workers
from cotswold.kernels.operands import MapStrides, pointer_of, required_map_strides

TASKS_A_THREAD = 4
"""Tasks per thread, at least, if a map has enough rows."""
LEAST_ROWS = 8
"""Least rows of a task: the rows around them are read twice."""
BLOCK_BYTES = 3 << 10
"""Bytes of the contiguous lanes of a task: memory is slow if read in smaller pieces."""
PART_COLUMNS = 12
"""Columns of a part: few, so that rows of all lanes stay in the second-level cache."""
STREAMED_BYTES = 16 << 20
"""Bytes read from which outputs bypass the caches, which could not hold them."""


def kernel(kind: PoolKind, config: PoolConfig, dtype: str, processor: Processor) -> int:
    """Return the address of the kernel of a configuration."""
    write = partial(write_pooling, kind, config, Lanes(dtype, processor.lanes(dtype)), processor.triple)
    name = ("pooling", kind.name, config.size, config.rows, config.vectors, int(config.stream), dtype)
    return library.address(name, processor, write, partial(_passes_self_test, kind, config, dtype, processor))


def _passes_self_test(
    kind: PoolKind, config: PoolConfig, dtype: str, processor: Processor, address: int
) -> bool:
    """True if a kernel pools or differentiates small maps with known results correctly."""
    size, strip = config.size, config.vectors * processor.lanes(dtype)
    images = strip if config.stream else strip + 3  # lines that bypass the caches must be whole
    shape, smoothing = MapShape(2, size + 5, size + PART_COLUMNS + 2), Smoothing(size)
    x, ones = (
        self_test_reference.sample_values(shape.height, shape.width, shape.channels, images),
        np.ones(size),
    )
    pooled = np.sqrt(self_test_reference.smooth(x**2, ones, ones) + 1)
    workers = Workers(images, dtype, processor, 1)

    def placed(values: Array) -> Tensor:
        return self_test_reference.as_map(values, dtype)

    if kind is POOL:
        expected, given, found = pooled, placed(x), placed(np.full_like(pooled, np.nan))
        _pooling(given, found, smoothing, workers).prepared(address, config).run(
            pointer_of(given), pointer_of(found), bits(1.0)
        )
    else:
        grad = (
            self_test_reference.sample_values(*pooled.shape, seed=1) if kind.grad else np.zeros_like(pooled)
        )
        expected = x * self_test_reference.smooth_adjoint((grad + 0.5) / pooled, ones, ones)
        maps = [placed(one) for one in (grad, pooled, x, np.full_like(x, np.nan))]
        above, below, source, found = maps
        given_maps = above if kind.grad else None, below, source, found
        work = _sloping(*given_maps, smoothing, workers).prepared(address, config)
        work.run(*_addresses(*given_maps, 0.5))
    return self_test_reference.map_agrees(found, expected, self_test_reference.ROUNDING[dtype])


def pool(x: Tensor, out: Tensor, smoothing: Smoothing, epsilon: float, workers: Workers) -> None:
    """``out = sqrt(sum of x² over a window + epsilon)``; maps have images last."""
    if out.numel() > 0:
        key = "pool", smoothing, x.shape, x.stride(), out.stride(), pointer_of(out) % LINE == 0, workers
        cached_kernel(key, lambda: _pooling(x, out, smoothing, workers).prepare_best_kernel()).run(
            pointer_of(x), pointer_of(out), bits(epsilon)
        )


def pool_gradient(
    grad: Tensor | None,
    pooled: Tensor,
    x: Tensor,
    out: Tensor,
    smoothing: Smoothing,
    weight: float,
    workers: Workers,
) -> None:
    """``out = x * (sum of (grad + weight) / pooled over the windows that contain a position)``."""
    if out.numel() > 0:
        maps = grad, pooled, x, out
        strides = tuple(one.stride() if one is not None else None for one in maps)
        key = "pool gradient", smoothing, x.shape, strides, pointer_of(out) % LINE == 0, workers
        cached_kernel(key, lambda: _sloping(*maps, smoothing, workers).prepare_best_kernel()).run(
            *_addresses(*maps, weight)
        )


def _addresses(grad: Tensor | None, pooled: Tensor, x: Tensor, out: Tensor, weight: float) -> list[int]:
    """Arguments of the gradient's kernel, in the order of its operands."""
    return [pointer_of(one) for one in (grad, pooled, x, out) if one is not None] + [bits(weight)]


def _pooling(x: Tensor, out: Tensor, smoothing: Smoothing, workers: Workers) -> _Pass:
    maps = required_map_strides(x), None, None, required_map_strides(out)
    shapes = MapShape(*x.shape[1:]), MapShape(*out.shape[1:])
    aligned = pointer_of(out) % LINE == 0
    return _Pass(POOL, *shapes, smoothing, smoothing.window.pad_before, maps, aligned, workers)


def _sloping(
    grad: Tensor | None, pooled: Tensor, x: Tensor, out: Tensor, smoothing: Smoothing, workers: Workers
) -> _Pass:
    kind = PENALTY if grad is None else SLOPE
    low = smoothing.size - 1 - smoothing.window.pad_before
    first = required_map_strides(grad) if grad is not None else None
    maps = first, required_map_strides(pooled), required_map_strides(x), required_map_strides(out)
    shapes = MapShape(*pooled.shape[1:]), MapShape(*x.shape[1:])
    return _Pass(kind, *shapes, smoothing, low, maps, pointer_of(out) % LINE == 0, workers)


@dataclass(frozen=True)
class _Pass:
    """A pooling pass: kind of sum, windows, source and target map, processor and threads."""

    kind: PoolKind
    source: MapShape
    target: MapShape
    smoothing: Smoothing
    low: int
    maps: tuple[MapStrides | None, MapStrides | None, MapStrides | None, MapStrides]
    """Strides of the maps that are read, and of the map that is written; None for no map."""
    aligned: bool
    """True if the output starts at a cache line."""
    workers: Workers

    @property
    def _outputs(self) -> int:
        return self.workers.images * self.target.channels * self.target.height * self.target.width

    @property
    def _lanes(self) -> tuple[int, int]:
        """Number of groups of lanes, and lanes of a group; contiguous channels form one group."""
        images, channels = self.workers.images, self.target.channels
        dense = channels == 1 or all(one is None or one.channel == images for one in self.maps)
        return (1, channels * images) if dense else (channels, images)

    def prepare_best_kernel(self) -> PreparedKernel:
        """Prepare the pass on the kernel that suits the maps and this processor."""
        kind, workers = self.kind, self.workers
        config = _config(
            (kind, self.smoothing.size), self.maps[3], self.aligned, self._lanes[1], self.target, workers
        )
        return self.prepared(kernel(kind, config, workers.dtype, workers.processor), config)

    def prepared(self, address: int, config: PoolConfig) -> PreparedKernel:
        """Prepare the pass on the kernel of a configuration, at an address.

        It runs on the addresses of the maps, and the bits of the constant to add.
        """
        source, target, workers = self.source, self.target, self.workers
        groups, lanes = self._lanes
        count = threads_for(self._outputs, workers.threads)
        width = workers.processor.lanes(workers.dtype)
        cut = _cut(target, groups, lanes, config.vectors * width, config.rows, workers, count)
        slot = scratch_elements(self.kind, config, width, cut.block, cut.columns)
        maps = dict(zip(("input", "second", "factor", "output"), self.maps, strict=True))
        fields = JOB.fill(
            groups * cut.blocks * cut.parts * cut.beside,
            {"lanes": lanes, "blocks": cut.blocks, "block": cut.block, "parts": cut.parts}
            | {"part_rows": cut.rows, "column_parts": cut.beside, "part_columns": cut.columns}
            | {"in_height": source.height, "in_width": source.width, "low": self.low}
            | {"out_height": target.height, "out_width": target.width},
            maps,
        )
        places = [JOB[name] for name, one in maps.items() if one is not None]
        return prepare_kernel(address, fields, (*places, JOB["scalar"]), slot, (workers.dtype, count))


@dataclass(frozen=True)
class _Cut:
    """Cut of a map into tasks: lanes of a block, columns and rows of a part, and the number of each."""

    block: int
    blocks: int
    columns: int
    beside: int
    rows: int
    parts: int


def _config(
    kind_and_size: tuple[PoolKind, int],
    out: MapStrides,
    aligned: bool,
    lanes: int,
    target: MapShape,
    workers: Workers,
) -> PoolConfig:
    """Configuration of the kernel for this processor and map."""
    (kind, size), number = kind_and_size, BYTES[workers.dtype]
    width = workers.processor.lanes(workers.dtype)
    rows = 4 if workers.processor.registers > 16 and size <= 5 and not kind.quotient else 2
    vectors = min(2, LINE // (width * number))
    strip = vectors * width
    # partial lines that bypass the caches are six times slower (measured with 32 bytes)
    whole = strip * number == LINE and aligned
    whole = whole and all(n % strip == 0 for n in (lanes, out.row, out.column, out.channel))
    outputs = workers.images * target.channels * target.height * target.width
    read = 3 if kind.grad else 1
    return PoolConfig(size, rows, vectors, whole and read * outputs * number >= STREAMED_BYTES)


def _cut(
    target: MapShape,
    groups: int,
    lanes: int,
    strip: int,
    group: int,
    workers: Workers,
    count: int,
) -> _Cut:
    """Return blocks of whole strips, rows in multiples of ``group``, and parts for ``count`` threads."""
    block = BLOCK_BYTES // BYTES[workers.dtype]
    blocks = max(-(-lanes // block), min(workers.threads, -(-lanes // strip)))
    block = -(-lanes // (blocks * strip)) * strip
    blocks = -(-lanes // block)
    columns = min(PART_COLUMNS, target.width)
    columns = -(-target.width // -(-target.width // columns))
    columns += columns % 2
    beside = -(-target.width // columns)
    wanted = 1 if count == 1 else -(-TASKS_A_THREAD * count // (groups * blocks * beside))
    rows = max(LEAST_ROWS, -(-target.height // wanted))
    rows = -(-rows // group) * group
    return _Cut(block, blocks, columns, beside, rows, -(-target.height // rows))
