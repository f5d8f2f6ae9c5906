"""Augmentation by kernels, by NumPy and by SciPy: the same transforms of the same batch.

Knows: the calls that make SciPy do the same. Does not know: the command's options, kernels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from cotswold.bench.measure import Document, interleaved, rates, ratios, rounded_all
from cotswold.data import Augmentation, keys
from cotswold.data.augment import STEPS
from cotswold.kernels.available import VARIABLE

Float32 = NDArray[np.float32]
Table = Mapping[str, Any]
Progress = Callable[[int, int], None]

SHAPES = {"1 x 28 x 28": (1, 28, 28), "3 x 32 x 32": (3, 32, 32)}
ELASTIC: Table = {"name": "elastic", "alpha": 34.0, "sigma": 4.0}
MOVES: Mapping[str, Table] = {
    "translation": {"name": "translation", "pixels": 2},
    "rotation": {"name": "rotation", "degrees": 15.0},
    "affine": {"name": "affine", "scale": (0.9, 1.1), "shear": 10.0},
    "random_crop": {"name": "random_crop", "area": (0.6, 1.0), "aspect": 1.3},
}
LEAST_ACCEPTED = {"elastic, 1 x 28 x 28": 10.0}
"""Least accepted speed-up over SciPy, on one core."""


def augmentation_rates(images: int, rounds: int, progress: Progress | None = None) -> Document:
    """Return images per second of each transform, round by round."""
    seconds: dict[str, dict[str, list[float]]] = {}
    for number, (shape_name, shape) in enumerate(SHAPES.items()):
        values = np.random.default_rng(0).random((images, *shape), np.float32)
        ways = {
            (f"{name}, {shape_name}", way): action
            for name, table in {"elastic": ELASTIC, **MOVES}.items()
            for way, action in _ways(table, values).items()
        }
        ways |= {
            (f"all in one, {shape_name}", way): action
            for way, action in _ours([*MOVES.values(), ELASTIC], values).items()
        }
        for (name, way), found in interleaved(ways, rounds).items():
            seconds.setdefault(name, {})[way] = found
        if progress is not None:
            progress(number + 1, len(SHAPES))
    return {
        "least_accepted_of_scipy": dict(LEAST_ACCEPTED),
        "samples_per_second": {
            f"{name}, {way}": rates(images, found).as_dict()
            for name, each in seconds.items()
            for way, found in each.items()
        },
        "of_scipy": {
            name: ratios(each["SciPy"], each["kernel"]).as_dict()
            for name, each in seconds.items()
            if "SciPy" in each
        },
        "of_numpy": {name: ratios(each["NumPy"], each["kernel"]).as_dict() for name, each in seconds.items()},
        "seconds": {
            f"{name}, {way}": rounded_all(found)
            for name, each in seconds.items()
            for way, found in each.items()
        },
    }


def _ways(table: Table, values: Float32) -> dict[str, Callable[[], Float32]]:
    """Return the implementations of one transform."""
    scipy = _elastic_by_scipy if table["name"] == "elastic" else partial(_moved_by_scipy, table)
    return {**_ours([table], values), "SciPy": partial(scipy, values)}


def _ours(tables: list[Table], values: Float32) -> dict[str, Callable[[], Float32]]:
    one, drawn = Augmentation.of(tables), keys(0, 0, np.arange(len(values)))

    def done(kernels: str) -> Float32:
        with _chosen(kernels):
            return one(values, drawn)

    return {"kernel": partial(done, "llvm"), "NumPy": partial(done, "torch")}


def _elastic_by_scipy(values: Float32) -> Float32:
    chance, found = np.random.default_rng(0), np.empty_like(values)
    height, width = values.shape[2:]
    grid = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij")).astype(np.float32)
    alpha, sigma = ELASTIC["alpha"], ELASTIC["sigma"]
    for image, target in zip(values, found, strict=True):
        drawn = 2 * chance.random((2, height, width), np.float32) - 1
        places = grid + alpha * np.stack(
            [ndimage.gaussian_filter(each, sigma, mode="constant") for each in drawn]
        )
        for channel, into in zip(image, target, strict=True):
            ndimage.map_coordinates(channel, places, order=1, mode="nearest", output=into)
    return found


def _moved_by_scipy(table: Table, values: Float32) -> Float32:
    found = np.empty_like(values)
    height, width = values.shape[2:]
    middle = np.array([(height - 1) / 2, (width - 1) / 2])
    move: Any = STEPS[table["name"]](**{key: one for key, one in table.items() if key != "name"})
    maps = move.before(keys(0, 0, np.arange(len(values))), 0, height, width)
    for each, image, target in zip(maps, values, found, strict=True):
        square, shift = each[:, :2], each[:, 2] + middle
        for channel, into in zip(image, target, strict=True):
            ndimage.affine_transform(
                channel, square, shift - square @ middle, order=1, mode="nearest", output=into
            )
    return found


@contextmanager
def _chosen(kernels: str) -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = kernels
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
