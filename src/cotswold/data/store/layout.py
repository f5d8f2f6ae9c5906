"""How a store lies on disk: shards of samples, chunked in space, as zarr v3 wants them.

Knows: names of files, shapes of shards and chunks, the bytes of a shard. Does not know: what the numbers
mean, manifests, zarr itself.

``arrays/<split>/pictures`` is (image, channel, y, x); one file holds a shard of some pictures, in it one
chunk for each tile of the plane, with a CRC-32C of its own, so that a window of the plane is read without the
rest. A vector, or a frame, is a picture of one pixel; a shard of them has several chunks of rows, so that the
frames before a shard are read without the rest of the one before. Beside it lie ``labels`` and, of frames,
``lengths``: how many frames each sequence has.

Shards are written here, not by zarr: importing it takes longer than preparing a hundred pictures, and its way
through queues and copies several times as long as the bytes themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cotswold.files import real_folder, writing_whole
from cotswold.files.checksum import crc32
from cotswold.geometry import MapShape

Chunk = tuple[int, int]
"""Bytes and CRC-32 of a chunk's file."""

GROUP, PICTURES, LABELS, LENGTHS = "arrays", "pictures", "labels", "lengths"
ROOT = f"{GROUP}/zarr.json"
"""The file in which zarr describes the group of all splits."""
LABELS_IN_CHUNK = 1 << 16
_SHARD_BYTES = 8 << 20
_SHARD_PICTURES_MAX = 256
_SHARD_VECTORS_MAX = 1 << 15
_CHUNKS_OF_VECTORS = 16
_TILE = 64
_ABSENT = (1 << 64) - 1
"""What the index of a shard says of a chunk that nothing is in."""


@dataclass(frozen=True)
class ShardSize:
    """Samples in one shard, and in one chunk of it."""

    samples: int
    chunk: int


def shard_pictures(shape: MapShape, dtype: str) -> int:
    """Pictures in one shard: about 8 MiB, 256 at most."""
    return max(1, min(_SHARD_PICTURES_MAX, _SHARD_BYTES // (shape.size * np.dtype(dtype).itemsize)))


def shard_vectors(shape: MapShape, dtype: str) -> ShardSize:
    """Vectors in one shard: about 8 MiB of them as they are read, with their context, 32,768 at most."""
    most = max(1, min(_SHARD_VECTORS_MAX, _SHARD_BYTES // (shape.size * np.dtype(dtype).itemsize)))
    chunk = -(-most // _CHUNKS_OF_VECTORS)
    return ShardSize(chunk * (most // chunk), chunk)


def tiles(height: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """How many tiles a plane is cut into along (y, x), and their extents; the last may reach beyond it."""
    rows, columns = -(-height // _TILE), -(-width // _TILE)
    return (rows, columns), (-(-height // rows), -(-width // columns))


def write_shard(path: Path, pictures: NDArray[Any], size: ShardSize) -> Chunk:
    """Write the file of a shard that has room for some pictures, whole or not at all, and measure it.

    Zarr's codec "sharding_indexed": the chunks one after another, each with its CRC-32C, then where each
    begins and how long it is, then the CRC-32C of that. Chunks without pictures are left out.
    """
    real_folder(path.parent)
    total, crc, index = 0, 0, b""
    with writing_whole(path) as file:
        for tile in _tiles(pictures, size):
            if tile is None:
                index += struct.pack("<QQ", _ABSENT, _ABSENT)
                continue
            index += struct.pack("<QQ", total, len(tile) + 4)
            for part in (tile, struct.pack("<I", google_crc32c.value(tile))):
                file.write(part)
                total, crc = total + len(part), crc32(part, crc)
        index += struct.pack("<I", google_crc32c.value(index))
        file.write(index)
    return total + len(index), crc32(index, crc)


def _tiles(pictures: NDArray[Any], size: ShardSize) -> Iterator[bytes | None]:
    """The chunks (image, channel, y, x) of a shard in their order, zeros where there is no picture; None for
    one that has none."""
    channels, height, width = pictures.shape[1:]
    counts, (tall, wide) = tiles(height, width)
    for start in range(0, size.samples, size.chunk):
        rows = pictures[start : start + size.chunk]
        for y, x in np.ndindex(counts):
            part = rows[:, :, y * tall : (y + 1) * tall, x * wide : (x + 1) * wide]
            if part.shape == (size.chunk, channels, tall, wide):
                yield part.tobytes()
            elif not len(rows):
                yield None
            else:
                whole = np.zeros((size.chunk, channels, tall, wide), pictures.dtype)
                whole[: len(rows), :, : part.shape[2], : part.shape[3]] = part
                yield whole.tobytes()


def folder(split: str) -> str:
    """Where a split lies, relative to the store."""
    return f"{GROUP}/{split}"


def shard_key(split: str, number: int) -> str:
    """The file of one shard, relative to the store."""
    return f"{folder(split)}/{PICTURES}/c/{number}/0/0/0"


def label_keys(split: str, labels: int, targets: int = 0) -> list[str]:
    """The files of the labels of one split, or of its regression targets of so many numbers."""
    inner = "/0" if targets else ""
    return [f"{folder(split)}/{LABELS}/c/{number}{inner}" for number in range(-(-labels // LABELS_IN_CHUNK))]


def length_keys(split: str, sequences: int) -> list[str]:
    """The files of the lengths of the sequences of one split; none without sequences."""
    return [f"{folder(split)}/{LENGTHS}/c/{number}" for number in range(-(-sequences // LABELS_IN_CHUNK))]


def shard_keys(split: str, pictures: int, shard: int) -> list[str]:
    """The files of all shards of one split."""
    return [shard_key(split, number) for number in range(-(-pictures // shard))]


def descriptions(split: str, sequences: int = 0) -> list[str]:
    """The files in which zarr describes one split and its arrays."""
    arrays = (PICTURES, LABELS, *([LENGTHS] if sequences else []))
    return [f"{folder(split)}/zarr.json", *(f"{folder(split)}/{name}/zarr.json" for name in arrays)]
