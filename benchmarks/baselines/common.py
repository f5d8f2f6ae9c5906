"""Parts that all baselines of the data servers share: images, transform, and the trainer that takes batches.

Knows: NumPy, /proc, Cotswold's transforms if they are installed. Does not know: data servers.

Each baseline is a module of this folder, run in benchmarks/ as ``python -m baselines.NAME '{"images": PATH,
...}'``. It prints one line of JSON: samples and seconds measured, processor seconds of all its processes,
their memory at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TICK = os.sysconf("SC_CLK_TCK")
KERNELS, NUMPY = "Cotswold's kernels", "NumPy"
DEGREES, SCALE, SHIFT = 15.0, 0.1, 1 / 14
"""Largest rotation, scaling and shift (as a fraction of a side) in either direction."""


@dataclass(frozen=True)
class LoaderSettings:
    """Settings of one measurement."""

    images: str
    """Path of an .npy file of images, uint8 (n, channel, y, x)."""
    batch: int
    workers: int
    warm_seconds: float
    seconds: float
    pause: float = 0.0
    """Seconds that the trainer computes on a batch."""
    tables: str = "[]"
    """Transforms in JSON, as `[[data.augment]]` of a recipe holds them."""
    scale: float = 1 / 255
    """Factor of the values before the transforms."""
    offset: float = 0.0
    """Number added to the scaled values."""

    @classmethod
    def asked(cls) -> LoaderSettings:
        """Read the settings from the command line."""
        return cls(**json.loads(sys.argv[1]))


def images(feeding: LoaderSettings) -> NDArray[np.uint8]:
    """Map the images into memory, shared by all readers."""
    found: NDArray[np.uint8] = np.load(feeding.images, mmap_mode="r")
    return found


def transformed(
    feeding: LoaderSettings, given: NDArray[np.uint8], chance: np.random.Generator
) -> NDArray[np.float32]:
    """Return variants of images (n, channel, y, x): float32, scaled, then transformed."""
    values = given.astype(np.float32)
    values *= np.float32(feeding.scale)
    values += np.float32(feeding.offset)
    augmentation = _augmentation(feeding.tables)
    if augmentation is not None:
        found: NDArray[np.float32] = augmentation(values, chance.integers(0, 1 << 63, len(values), np.uint64))
        return found
    return moved(values, chance.random((len(values), 4), np.float32))


@cache
def _augmentation(tables: str) -> Callable[..., Any] | None:
    """Return Cotswold's transforms as a library, or None if one of their dependencies is missing."""
    try:
        from cotswold.data.augment import Augmentation

        return Augmentation.of(json.loads(tables))
    except ImportError:
        if "elastic" in tables:
            raise
        return None


def transform_name(feeding: LoaderSettings) -> str:
    """Return the name of the library that transforms."""
    return NUMPY if _augmentation(feeding.tables) is None else KERNELS


def affine(draws: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    """Return matrices (n, 2, 3) that map places (y, x, 1) of the result to places of the image.

    ``draws`` has four numbers in 0 to 1 per image: rotation, scale and two shifts.
    """
    turn = (2 * draws[:, 0] - 1) * np.float32(np.radians(DEGREES))
    scale = 1 / (1 - SCALE + 2 * SCALE * draws[:, 1])
    cosine, sine = np.cos(turn) * scale, np.sin(turn) * scale
    middle = np.array([(height - 1) / 2, (width - 1) / 2], np.float32)
    shift = (2 * draws[:, 2:4] - 1) * np.array([height, width], np.float32) * np.float32(SHIFT)
    found = np.empty((len(draws), 2, 3), np.float32)
    found[:, 0, 0], found[:, 0, 1], found[:, 1, 0], found[:, 1, 1] = cosine, -sine, sine, cosine
    found[:, :, 2] = middle + shift - found[:, :, :2] @ middle
    return found


def moved(given: NDArray[np.float32], draws: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rotate, scale and shift images (n, channel, y, x) with NumPy alone: bilinear, 0 outside."""
    count, _, height, width = given.shape
    matrix = affine(draws, height, width)
    rows, columns = np.meshgrid(
        np.arange(height, dtype=np.float32), np.arange(width, dtype=np.float32), indexing="ij"
    )
    places = matrix[:, :, 0, None, None] * rows + matrix[:, :, 1, None, None] * columns
    places += matrix[:, :, 2, None, None]
    low = np.floor(places)
    part = places - low
    y, x = low.astype(np.int32)[:, 0], low.astype(np.int32)[:, 1]
    which = np.arange(count)[:, None, None]
    last = given.transpose(0, 2, 3, 1)
    found = np.zeros(last.shape, np.float32)
    for down in (0, 1):
        for right in (0, 1):
            at_y, at_x = y + down, x + right
            inside = (at_y >= 0) & (at_y < height) & (at_x >= 0) & (at_x < width)
            weight = np.abs(1 - down - part[:, 0]) * np.abs(1 - right - part[:, 1]) * inside
            found += weight[..., None] * last[which, at_y.clip(0, height - 1), at_x.clip(0, width - 1)]
    return np.ascontiguousarray(found.transpose(0, 3, 1, 2))


def measured(feeding: LoaderSettings, batches: Iterator[Any], transform: str) -> None:
    """Take batches for the requested time, after a warm-up that starts at the first batch, and print the
    result."""
    next(batches)
    until = time.monotonic() + feeding.warm_seconds
    while time.monotonic() < until:
        next(batches)
    before, began = processor_seconds(), time.monotonic()
    samples, waited, paused = 0, 0.0, 0.0
    while (now := time.monotonic()) - began < feeding.seconds:
        samples += len(next(batches))
        taken = time.monotonic()
        waited += taken - now
        if feeding.pause:
            time.sleep(feeding.pause)
            paused += time.monotonic() - taken
    seconds = time.monotonic() - began
    after = processor_seconds()
    print(
        json.dumps(
            {
                "transform": transform,
                "samples": samples,
                "seconds": seconds,
                "waited_seconds": waited,
                "paused_seconds": paused,
                "processor_seconds": sum(used - before.get(pid, 0.0) for pid, used in after.items()),
                "memory_bytes": sum(map(memory_bytes, after)),
                "processes": len(after),
            }
        ),
        flush=True,
    )


def processor_seconds() -> dict[int, float]:
    """Return processor seconds by process id, for this process and all its descendants."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                fields = (each / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(each.name)] = int(fields[1])
            used[int(each.name)] = (int(fields[11]) + int(fields[12])) / _TICK
    return {pid: seconds for pid, seconds in used.items() if _is_of(os.getpid(), pid, parents)}


def _is_of(ancestor: int, pid: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != ancestor:
        pid = parents[pid]
    return pid == ancestor


def memory_bytes(pid: int) -> int:
    """Return the process's proportional share of its mapped memory (PSS)."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
