"""What every rival of the data servers does alike: pictures, transform, the trainer that takes batches.

Knows: NumPy, /proc. Does not know: Cotswold, so that a Python without it can run a rival.

A rival is a module of this folder, run in benchmarks/ as ``python -m rivals.NAME '{"pictures": PATH, ...}'``.
It prints one line of JSON: samples and seconds measured, processor seconds of all its processes, their memory
at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Feeding:
    """What is measured."""

    pictures: str
    """An .npy file of pictures, uint8 (n, y, x, channel)."""
    batch: int
    workers: int
    warm_seconds: float
    seconds: float
    pause: float = 0.0
    """Seconds that the trainer takes over a batch."""

    @classmethod
    def asked(cls) -> Feeding:
        """What the command line says."""
        return cls(**json.loads(sys.argv[1]))


def pictures(feeding: Feeding) -> NDArray[np.uint8]:
    """The set, mapped into memory, which its readers share."""
    found: NDArray[np.uint8] = np.load(feeding.pictures, mmap_mode="r")
    return found


def affine(draws: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    """Of four numbers in 0 to 1 a picture (rotation by 15 degrees, scale by a tenth, shift by a fourteenth of
    a side, each way): matrices (n, 2, 3) from places (y, x, 1) of the result to places of the picture."""
    turn = (2 * draws[:, 0] - 1) * np.float32(np.pi / 12)
    scale = 1 / (0.9 + 0.2 * draws[:, 1])
    cosine, sine = np.cos(turn) * scale, np.sin(turn) * scale
    middle = np.array([(height - 1) / 2, (width - 1) / 2], np.float32)
    shift = (2 * draws[:, 2:4] - 1) * np.array([height, width], np.float32) / 14
    found = np.empty((len(draws), 2, 3), np.float32)
    found[:, 0, 0], found[:, 0, 1], found[:, 1, 0], found[:, 1, 1] = cosine, -sine, sine, cosine
    found[:, :, 2] = middle + shift - found[:, :, :2] @ middle
    return found


def transformed(given: NDArray[np.uint8], draws: NDArray[np.float32]) -> NDArray[np.float32]:
    """Pictures (n, y, x, channel) turned, scaled and shifted, between pixels bilinear, outside 0; float32."""
    count, height, width, _ = given.shape
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
    found = np.zeros(given.shape, np.float32)
    for down in (0, 1):
        for right in (0, 1):
            at_y, at_x = y + down, x + right
            inside = (at_y >= 0) & (at_y < height) & (at_x >= 0) & (at_x < width)
            weight = np.abs(1 - down - part[:, 0]) * np.abs(1 - right - part[:, 1]) * inside
            values = given[which, at_y.clip(0, height - 1), at_x.clip(0, width - 1)]
            found += weight[..., None] * values
    return found


def measured(feeding: Feeding, batches: Iterator[Any]) -> None:
    """Take batches for the time that was asked for, and print what came of it."""
    until = time.monotonic() + feeding.warm_seconds
    next(batches)
    while time.monotonic() < until:
        next(batches)
    before, began = _processor_seconds(), time.monotonic()
    samples, waited = 0, 0.0
    while (now := time.monotonic()) - began < feeding.seconds:
        samples += len(next(batches))
        waited += time.monotonic() - now
        if feeding.pause:
            time.sleep(feeding.pause)
    seconds = time.monotonic() - began
    after = _processor_seconds()
    print(
        json.dumps(
            {
                "samples": samples,
                "seconds": seconds,
                "waited_seconds": waited,
                "processor_seconds": sum(used - before.get(pid, 0.0) for pid, used in after.items()),
                "memory_bytes": sum(map(_memory_bytes, after)),
            }
        ),
        flush=True,
    )


def _processor_seconds() -> dict[int, float]:
    """Of this process and all that came of it, by number."""
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


def _memory_bytes(pid: int) -> int:
    """The process's share of the memory that it has mapped (PSS)."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
