"""The arrays of a store, as zarr describes and reads them.

Knows: zarr, its codecs. Does not know: the meaning of the numbers, manifests, the writing of shards.

Zarr adds no checksum unless its codec is named.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec

from cotswold.data.store.layout import (
    GROUP,
    LABELS,
    LABELS_IN_CHUNK,
    LENGTHS,
    ROOT,
    SAMPLES,
    ShardSize,
    tiles,
)
from cotswold.geometry import MapShape


def create_group(path: Path) -> None:
    """Create the group that contains the splits."""
    if not (path / ROOT).exists():
        zarr.create_group(path / GROUP, zarr_format=3)


def create(path: Path, images: int, shape: MapShape, dtype: str, size: ShardSize) -> None:
    """Create the empty arrays of one split, or resize those of an interrupted preparation."""
    (rows, columns), (tall, wide) = tiles(shape.height, shape.width)
    if (path / SAMPLES / "zarr.json").exists():
        open_array(path / SAMPLES, "r+").resize((images, shape.channels, shape.height, shape.width))
    else:
        zarr.create_array(
            path,
            name=SAMPLES,
            shape=(images, shape.channels, shape.height, shape.width),
            chunks=(size.chunk, shape.channels, tall, wide),
            shards=(size.samples, shape.channels, rows * tall, columns * wide),
            dtype=dtype,
            filters=None,
            compressors=[Crc32cCodec()],
            fill_value=0,
            dimension_names=["image", "channel", "y", "x"],
            config={"write_empty_chunks": True},
        )


def write_labels(path: Path, labels: NDArray[Any]) -> None:
    """Write all labels or regression targets of one split."""
    _write(path, LABELS, labels)


def write_lengths(path: Path, lengths: NDArray[np.int64]) -> None:
    """Write the number of frames of each sequence of one split."""
    _write(path, LENGTHS, lengths)


def _write(path: Path, name: str, values: NDArray[Any]) -> None:
    array = zarr.create_array(
        path,
        name=name,
        shape=values.shape,
        chunks=(LABELS_IN_CHUNK, *values.shape[1:]),
        dtype=values.dtype,
        filters=None,
        compressors=[Crc32cCodec()],
        fill_value=0,
        overwrite=True,
        config={"write_empty_chunks": True},
    )
    array[:] = values


def open_array(path: Path, mode: Any = "r") -> zarr.Array[Any]:
    """Open an array of a store."""
    array = zarr.open_array(path, mode=mode, zarr_format=3)
    return array.with_config({"write_empty_chunks": True}) if mode != "r" else array
