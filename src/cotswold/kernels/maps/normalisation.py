"""Contrast normalisation by CPU kernels: forward, and the gradient with respect to its input.

Knows: the cut of a map into tasks, the kernel of each. Does not know: Gaussians, strides, autograd.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from cotswold.geometry import MapShape, Smoothing, Window
from cotswold.kernels.compile import library, self_test_reference
from cotswold.kernels.compile.emit import BYTES, Lanes
from cotswold.kernels.compile.jobs import bits, cached_kernel, prepare_kernel
from cotswold.kernels.compile.self_test_reference import Array
from cotswold.kernels.machine.execution import LINE, PreparedKernel, threads_for
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.maps.normalisation_backward import write_backward
from cotswold.kernels.maps.normalisation_forward import write_forward
from cotswold.kernels.maps.normalisation_rows import (
    BANDS,
    GRADIENT,
    JOB,
    MEASURE,
    NORMALISE,
    NORMALISE_AND_MEASURE,
    VECTORS,
    ContrastKind,
    scratch_elements,
)
from cotswold.kernels.maps.tasks import Workers
from cotswold.kernels.operands import pointer_of, required_map_strides

TASKS_A_THREAD = 2
"""Tasks per thread, at least, if a map has enough rows."""
LEAST_ROWS = 3
"""Least height of a task, in windows: rows around a task are computed twice."""
CACHED_BYTES = 1 << 19
"""Bytes of the rows between the first step and the last, so that they stay in the second-level cache."""
PREFETCH_BYTES = 1 << 14
"""Prefetch distance in a map."""
STREAM_BYTES = 1 << 22
"""Map size from which output bypasses the caches (streaming stores)."""


Maps = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""h, gradient, means, powers, result; None for one that a step does not use."""

Statistics = tuple[Tensor, Tensor]
"""Means, and powers; maps of one channel."""


@dataclass(frozen=True)
class Bands:
    """Weights ``(output, size)`` along y and x of the first mean, then of the second; and transposes."""

    forward: tuple[Tensor, Tensor, Tensor, Tensor]
    transposed: tuple[Tensor, Tensor, Tensor, Tensor]


def kernel(kind: ContrastKind, dtype: str, size: int, processor: Processor) -> int:
    """Return the address of the kernel for windows of one size."""
    lanes = Lanes(dtype, processor.lanes(dtype))
    write = (
        partial(write_backward, lanes, size, processor.triple)
        if kind is GRADIENT
        else partial(write_forward, kind, lanes, size, processor.triple)
    )
    name = ("normalisation", kind.name, dtype, size)
    return library.address(name, processor, write, partial(_passes_self_test, kind, dtype, size, processor))


def _passes_self_test(kind: ContrastKind, dtype: str, size: int, processor: Processor, address: int) -> bool:
    """True if a kernel normalises, measures or differentiates small maps with known results correctly.

    Weights differ along the axes and between the means; some powers are below the floor.
    """
    images, shape = VECTORS * processor.lanes(dtype) + 3, MapShape(3, 2 * size + 2, 2 * size + 3)
    means = [self_test_reference.weights(size, i) for i in range(4)]
    h = self_test_reference.sample_values(shape.height, shape.width, shape.channels, images)
    right = self_test_reference.Normalised(h, (means[0], means[1]), (means[2], means[3]), 0.7)
    grad = self_test_reference.sample_values(*right.output().shape, seed=1)
    given, expected = _known_maps(kind, right, grad)
    workers = Workers(images, dtype, processor, 1)
    work = Normalisation(shape, Smoothing(size), right.floor, _uniform(shape, means, dtype), workers)
    maps = [self_test_reference.as_map(one, dtype) for one in (h, grad, *given)]
    there = [one if one.numel() else None for one in maps]
    given_maps = (there[0], there[1] if kind is GRADIENT else None, there[2], there[3], there[4])
    work.prepared(kind, given_maps, address).run(*(pointer_of(one) for one in given_maps if one is not None))
    return all(
        self_test_reference.map_agrees(found, one, self_test_reference.ROUNDING[dtype])
        for found, one in zip(maps[2:], expected, strict=True)
    )


def _known_maps(
    kind: ContrastKind, right: self_test_reference.Normalised, grad: Array
) -> tuple[list[Array], list[Array]]:
    """Means, powers and result: the kernel's arguments, and their expected values afterwards."""
    none = np.zeros((0, 0, 0, 0))
    if kind is NORMALISE:
        expected = [none, none, right.output()]
    elif kind is not GRADIENT:
        expected = [right.mean, right.power, right.output() if kind.result else none]
    else:
        expected = [right.mean, right.power, right.gradient(grad)]
    unwritten = [np.full_like(one, np.nan) for one in expected]
    return (expected[:2] + unwritten[2:] if kind is GRADIENT else unwritten), expected


def _uniform(shape: MapShape, means: list[Array], dtype: str) -> Bands:
    """Bands with the same weights everywhere, for windows inside the map."""
    size = len(means[0])
    outputs = [extent - (size - 1) * (1 + i // 2) for i, extent in enumerate((shape.height, shape.width) * 2)]
    forward, transposed = [], []
    for count, mean in zip(outputs, means, strict=True):
        places = np.arange(count + size - 1)[:, None] - (size - 1) + np.arange(size)
        back = np.where((places >= 0) & (places < count), mean[::-1], 0.0)
        forward.append(self_test_reference.as_tensor(np.tile(mean, (count, 1)), dtype))
        transposed.append(self_test_reference.as_tensor(back, dtype))
    return Bands((*forward,), (*transposed,))  # type: ignore[arg-type]  # four of each


@dataclass(frozen=True, eq=False)
class Normalisation:
    """Normalisation of maps of one shape: windows, bands, the least power, processor and threads."""

    shape: MapShape
    smoothing: Smoothing
    floor: float
    bands: Bands
    workers: Workers

    def normalise(self, h: Tensor, out: Tensor) -> None:
        """``out = g / max(floor, root of the mean of g²)``, with ``g = h - mean of h``."""
        self._run(NORMALISE, (h, None, None, None, out))

    def normalise_and_measure(self, h: Tensor, out: Tensor) -> Statistics:
        """`normalise`; return the statistics that `gradient` needs."""
        mean, power = self._map(self._mean), self._map(self._power)
        self._run(NORMALISE_AND_MEASURE, (h, None, mean, power, out))
        return mean, power

    def gradient(self, grad: Tensor, h: Tensor, out: Tensor, statistics: Statistics | None = None) -> None:
        """Write the gradient of ``<grad, normalised h>`` with respect to ``h`` to ``out``."""
        mean, power = statistics or (self._map(self._mean), self._map(self._power))
        if statistics is None:
            self._run(MEASURE, (h, None, mean, power, None))
        self._run(GRADIENT, (h, grad, mean, power, out))

    @property
    def _mean(self) -> MapShape:
        return self.smoothing.output(self.shape)

    @property
    def _power(self) -> MapShape:
        return self.smoothing.output(self._mean)

    def _map(self, shape: MapShape) -> Tensor:
        dtype = {"float32": torch.float32, "float64": torch.float64}[self.workers.dtype]
        extents = (shape.height, shape.width, 1, self.workers.images)
        physical = torch.empty(extents, dtype=dtype, device="cpu")
        return physical.permute(3, 2, 0, 1)

    def _run(self, kind: ContrastKind, maps: Maps) -> None:
        there = [one for one in maps if one is not None]
        if there[0].numel() == 0:
            return
        aligned = pointer_of(there[-1]) % LINE == 0
        key = "normalisation", self, kind.name, tuple(one.stride() for one in there), aligned
        cached_kernel(key, lambda: self._prepare_kernel(kind, maps)).run(*(pointer_of(one) for one in there))

    def _prepare_kernel(self, kind: ContrastKind, maps: Maps) -> PreparedKernel:
        code = kernel(kind, self.workers.dtype, self.smoothing.size, self.workers.processor)
        return self.prepared(kind, maps, code)

    def prepared(self, kind: ContrastKind, maps: Maps, address: int) -> PreparedKernel:
        """Prepare a step, or a measurement, by the kernel at an address; run it on the addresses of the maps.

        The maps are h, gradient, means, powers, result.
        """
        shape, mean, power, workers = self.shape, self._mean, self._power, self.workers
        size, images, channels = self.smoothing.size, workers.images, shape.channels
        outputs = images * channels * shape.height * shape.width
        rows = shape.height if kind is GRADIENT else power.height
        low, bands = self.smoothing.window.pad_before, self.bands.forward
        if kind is GRADIENT:
            low, bands = size - 1 - low, self.bands.transposed
        count = threads_for(outputs, workers.threads)
        width = workers.processor.lanes(workers.dtype)
        place = 2 * size * shape.width * channels * BYTES[workers.dtype]
        strip = VECTORS * width
        block = min(max(1, CACHED_BYTES // (place * strip)), -(-images // strip)) * strip
        block = min(block, -(-images // width) * width)
        blocks = -(-images // block)
        parts = min(max(1, -(-TASKS_A_THREAD * count // blocks)), max(1, rows // (LEAST_ROWS * size)))
        parts = 1 if count == 1 else parts
        part_rows = -(-rows // parts)
        crop = 0 if self.smoothing.keep else Window.same_padding(size).pad_before
        strides = {
            name: required_map_strides(one)
            for name, one in zip(("map", "grad", "mean", "power", "output"), maps, strict=True)
            if one is not None
        }
        fields = JOB.fill(
            blocks * -(-rows // part_rows),
            {"images": images, "channels": channels, "blocks": blocks, "block": block}
            | {"parts": -(-rows // part_rows), "part_rows": part_rows}
            | {"height": shape.height, "width": shape.width}
            | {"mean_height": mean.height, "mean_width": mean.width}
            | {"power_height": power.height, "power_width": power.width, "low": low, "crop": crop}
            | {"prefetch_columns": max(1, PREFETCH_BYTES // (channels * block * BYTES[workers.dtype]))}
            | {"stream": self._streams(kind, maps[-1], block), "floor": bits(self.floor**2)}
            | dict(zip(BANDS, map(pointer_of, bands), strict=True)),
            strides,
        )
        places = tuple(JOB[name] for name in strides)
        slot = scratch_elements(block, size, shape.width)
        return prepare_kernel(address, fields, places, slot, (workers.dtype, count), bands)

    def _streams(self, kind: ContrastKind, out: Tensor | None, block: int) -> bool:
        """True if the output bypasses the caches: it is large and consists of whole cache lines."""
        if out is None:
            return False
        pitches = required_map_strides(out)
        each = BYTES[self.workers.dtype]
        shape = self.shape if kind is GRADIENT else self._power
        outputs = self.workers.images * shape.channels * shape.height * shape.width
        steps = [each * one for one in (pitches.row, pitches.column, pitches.channel, block)]
        return outputs * each >= STREAM_BYTES and all(one % LINE == 0 for one in (pointer_of(out), *steps))
