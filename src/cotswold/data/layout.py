"""How a store lies on disk: zarr v3, the image first, shards of pictures, chunked in space.

Knows: shapes of shards and chunks, codecs. Does not know: what the numbers mean, manifests.

``arrays/<split>/pictures`` is (image, channel, y, x); one file holds a shard of some pictures, in it one
chunk for each tile of the plane, with a CRC-32C of its own, so that a window of the plane is read without the
rest. Zarr has no checksum unless it is named.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec

from cotswold.geometry import MapShape

GROUP, PICTURES, LABELS = "arrays", "pictures", "labels"
ROOT = f"{GROUP}/zarr.json"
"""The file in which zarr describes the group of all splits."""
_SHARD_BYTES = 8 << 20
_SHARD_PICTURES_MAX = 256
_TILE = 64
_LABELS_IN_CHUNK = 1 << 16


def shard_pictures(shape: MapShape, dtype: str) -> int:
    """Pictures in one shard: about 8 MiB, 256 at most."""
    return max(1, min(_SHARD_PICTURES_MAX, _SHARD_BYTES // (shape.size * np.dtype(dtype).itemsize)))


def begin(path: Path) -> None:
    """Make the group that holds the splits."""
    if not (path / ROOT).exists():
        zarr.create_group(path / GROUP, zarr_format=3)


def folder(split: str) -> str:
    """Where a split lies, relative to the store."""
    return f"{GROUP}/{split}"


def create(path: Path, pictures: int, shape: MapShape, dtype: str, shard: int) -> None:
    """Make the arrays of one split, empty; those of an interrupted preparation stay as they are."""
    tiles = [-(-extent // _TILE) for extent in (shape.height, shape.width)]
    tile = [-(-extent // count) for extent, count in zip((shape.height, shape.width), tiles, strict=True)]
    if (path / PICTURES / "zarr.json").exists():
        opened(path / PICTURES, "r+").resize((pictures, shape.channels, shape.height, shape.width))
    else:
        zarr.create_array(
            path,
            name=PICTURES,
            shape=(pictures, shape.channels, shape.height, shape.width),
            chunks=(shard, shape.channels, *tile),
            shards=(shard, shape.channels, tile[0] * tiles[0], tile[1] * tiles[1]),
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
        chunks=(_LABELS_IN_CHUNK,),
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


def shard_key(split: str, number: int) -> str:
    """The file of one shard, relative to the store."""
    return f"{folder(split)}/{PICTURES}/c/{number}/0/0/0"


def label_keys(split: str, labels: int) -> list[str]:
    """The files of the labels of one split."""
    return [f"{folder(split)}/{LABELS}/c/{number}" for number in range(-(-labels // _LABELS_IN_CHUNK))]


def shard_keys(split: str, pictures: int, shard: int) -> list[str]:
    """The files of all shards of one split."""
    return [shard_key(split, number) for number in range(-(-pictures // shard))]


def descriptions(split: str) -> list[str]:
    """The files in which zarr describes one split and its arrays."""
    return [
        f"{folder(split)}/zarr.json",
        *(f"{folder(split)}/{name}/zarr.json" for name in (PICTURES, LABELS)),
    ]
