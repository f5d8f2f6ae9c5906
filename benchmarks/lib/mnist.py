"""MNIST, or random images of the same shape if MNIST is not available.

Knows: the idx format, the directory COTSWOLD_DATA. Does not know: networks.
"""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cotswold import recipe as recipes
from cotswold.recipe import Recipe

SIZES = {"train": 60_000, "t10k": 10_000}


def source(folder: Path) -> Path:
    """Return the folder of MNIST, or of random images in ``folder``."""
    root = os.environ.get("COTSWOLD_DATA")
    if root is not None and (Path(root) / "mnist").is_dir():
        return Path(root) / "mnist"
    draw(folder / "drawn-mnist")
    return folder.absolute() / "drawn-mnist"


def recipe_here(name: str, folder: Path, overrides: list[str]) -> Recipe:
    """Return a recipe; without MNIST, adam-mnist uses random images and is renamed."""
    if name == "adam-mnist" and (found := source(folder)).name != "mnist":
        overrides = [f"data.source={found}", "name=adam-mnist-drawn", *overrides]
    return recipes.load(name, overrides)


def draw(folder: Path, sizes: dict[str, int] = SIZES) -> None:
    """Write ten classes of 28 x 28 grey images, a random pattern each with noise, as idx files."""
    if (folder / "t10k-labels-idx1-ubyte.gz").is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    classes = chance.integers(0, 256, (10, 7, 7)).repeat(4, 1).repeat(4, 2)
    for split, count in sizes.items():
        labels = chance.integers(0, 10, count).astype(np.uint8)
        noise = chance.integers(-128, 128, (count, 28, 28))
        images = np.clip(classes[labels] + noise, 0, 255).astype(np.uint8)
        _write(folder / f"{split}-images-idx3-ubyte.gz", images)
        _write(folder / f"{split}-labels-idx1-ubyte.gz", labels)


def _write(path: Path, values: NDArray[np.uint8]) -> None:
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    path.write_bytes(gzip.compress(head + values.tobytes(), 1))
