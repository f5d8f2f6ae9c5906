"""The arrays of a store, as zarr describes and reads them.

Knows: zarr, its codecs. Does not know: what the numbers mean, manifests, how shards are filled.

Zarr has no checksum unless it is named.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec

from cotswold.data.layout import GROUP, LABELS, LABELS_IN_CHUNK, PICTURES, ROOT, tiles
from cotswold.geometry import MapShape


def begin(path: Path) -> None:
    """Make the group that holds the splits."""
    if not (path / ROOT).exists():
        zarr.create_group(path / GROUP, zarr_format=3)


def create(path: Path, pictures: int, shape: MapShape, dtype: str, shard: int) -> None:
    """Make the arrays of one split, empty; those of an interrupted preparation stay as they are."""
    (rows, columns), (tall, wide) = tiles(shape.height, shape.width)
    if (path / PICTURES / "zarr.json").exists():
        opened(path / PICTURES, "r+").resize((pictures, shape.channels, shape.height, shape.width))
    else:
        zarr.create_array(
            path,
            name=PICTURES,
            shape=(pictures, shape.channels, shape.height, shape.width),
            chunks=(shard, shape.channels, tall, wide),
            shards=(shard, shape.channels, rows * tall, columns * wide),
            dtype=dtype,
            filters=None,
            compressors=[Crc32cCodec()],
            fill_value=0,
            dimension_names=["image", "channel", "y", "x"],
            config={"write_empty_chunks": True},
        )


def write_labels(path: Path, labels: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """Write the labels of one split, whole."""
    array = zarr.create_array(
        path,
        name=LABELS,
        shape=labels.shape,
        chunks=(LABELS_IN_CHUNK,),
        dtype="int64",
        filters=None,
        compressors=[Crc32cCodec()],
        fill_value=0,
        overwrite=True,
        config={"write_empty_chunks": True},
    )
    array[:] = labels


def opened(path: Path, mode: Any = "r") -> zarr.Array[Any]:
    """An array of a store."""
    array = zarr.open_array(path, mode=mode, zarr_format=3)
    return array.with_config({"write_empty_chunks": True}) if mode != "r" else array
