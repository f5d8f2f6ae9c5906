"""The layout of a store on disk: shards of samples, chunked in space, in zarr v3 format.

Knows: names of files, shapes of shards and chunks, the bytes of a shard. Does not know: the meaning of the
numbers, manifests, zarr itself.

``arrays/<split>/samples`` is (image, channel, y, x). One file contains a shard of images, with one chunk for
each tile of the plane, each with a CRC-32C, so that a window of the plane is read without the rest. A vector
or frame is an image of one pixel. A shard of vectors has several chunks of rows, so that the frames before a
shard are read without the rest of the previous one. Next to it are ``labels`` and, for frames, ``lengths``:
the number of frames in each sequence.

Shards are written by this module instead of zarr. Importing zarr takes longer than preparing a hundred
images, and its queues and copies take several times as long as writing the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
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
"""Size in bytes and CRC-32 of a chunk's file."""

GROUP, SAMPLES, LABELS, LENGTHS = "arrays", "samples", "labels", "lengths"
ROOT = f"{GROUP}/zarr.json"
"""The file with zarr's metadata of the group of all splits."""
LABELS_IN_CHUNK = 1 << 16
_SHARD_BYTES = 8 << 20
_SHARD_IMAGES_MAX = 256
_SHARD_VECTORS_MAX = 1 << 15
_CHUNKS_OF_VECTORS = 16
_TILE = 64
_ABSENT = (1 << 64) - 1
"""Entry of an empty chunk in the index of a shard."""


@dataclass(frozen=True)
class ShardSize:
    """Samples in a shard, and in each of its chunks."""

    samples: int
    chunk: int


def shard_images(shape: MapShape, dtype: str) -> int:
    """Return the images in a shard: about 8 MiB, at most 256."""
    return max(1, min(_SHARD_IMAGES_MAX, _SHARD_BYTES // (shape.size * np.dtype(dtype).itemsize)))


def shard_vectors(shape: MapShape, dtype: str) -> ShardSize:
    """Return the vectors in a shard: about 8 MiB when read with their context, at most 32,768."""
    most = max(1, min(_SHARD_VECTORS_MAX, _SHARD_BYTES // (shape.size * np.dtype(dtype).itemsize)))
    chunk = -(-most // _CHUNKS_OF_VECTORS)
    return ShardSize(chunk * (most // chunk), chunk)


def tiles(height: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the number of tiles of a plane along (y, x) and their size; the last may exceed the plane."""
    rows, columns = -(-height // _TILE), -(-width // _TILE)
    return (rows, columns), (-(-height // rows), -(-width // columns))


def write_shard(path: Path, images: NDArray[Any], size: ShardSize) -> Chunk:
    """Write a shard's file atomically and return its size and checksum.

    The format is zarr's codec "sharding_indexed": the chunks in sequence, each with its CRC-32C, then an
    index of their offsets and lengths, then the CRC-32C of the index. Chunks without images are omitted.
    """
    real_folder(path.parent)
    total, crc, index = 0, 0, b""
    with writing_whole(path) as file:
        for tile in _tiles(images, size):
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


def _tiles(images: NDArray[Any], size: ShardSize) -> Iterator[bytes | None]:
    """Yield the chunks (image, channel, y, x) of a shard in order, padded with zeros; None for an empty
    one.
    """
    channels, height, width = images.shape[1:]
    counts, (tall, wide) = tiles(height, width)
    for start in range(0, size.samples, size.chunk):
        rows = images[start : start + size.chunk]
        for y, x in np.ndindex(counts):
            part = rows[:, :, y * tall : (y + 1) * tall, x * wide : (x + 1) * wide]
            if part.shape == (size.chunk, channels, tall, wide):
                yield part.tobytes()
            elif not len(rows):
                yield None
            else:
                whole = np.zeros((size.chunk, channels, tall, wide), images.dtype)
                whole[: len(rows), :, : part.shape[2], : part.shape[3]] = part
                yield whole.tobytes()


def folder(split: str) -> str:
    """Return the folder of a split, relative to the store."""
    return f"{GROUP}/{split}"


def shard_key(split: str, number: int) -> str:
    """Return the file of a shard, relative to the store."""
    return f"{folder(split)}/{SAMPLES}/c/{number}/0/0/0"


def label_keys(split: str, labels: int, targets: int = 0) -> list[str]:
    """Return the files of a split's labels, or of its regression targets if ``targets`` > 0."""
    inner = "/0" if targets else ""
    return [f"{folder(split)}/{LABELS}/c/{number}{inner}" for number in range(-(-labels // LABELS_IN_CHUNK))]


def length_keys(split: str, sequences: int) -> list[str]:
    """Return the files of the sequence lengths of a split; empty without sequences."""
    return [f"{folder(split)}/{LENGTHS}/c/{number}" for number in range(-(-sequences // LABELS_IN_CHUNK))]


def shard_keys(split: str, images: int, shard: int) -> list[str]:
    """Return the files of all shards of a split."""
    return [shard_key(split, number) for number in range(-(-images // shard))]


def descriptions(split: str, sequences: int = 0) -> list[str]:
    """Return the files with zarr's metadata of a split and its arrays."""
    arrays = (SAMPLES, LABELS, *([LENGTHS] if sequences else []))
    return [f"{folder(split)}/zarr.json", *(f"{folder(split)}/{name}/zarr.json" for name in arrays)]


def side_keys(name: str, part: Mapping[str, Any], targets: int) -> list[str]:
    """Return the files of a split's labels or sequence lengths; ``part``: its entry in the manifest."""
    split = name.split("/")[1]
    if name.endswith(LABELS):
        return label_keys(split, part["samples"], targets)
    return length_keys(split, part["sequences"])


def array_form(
    name: str, part: Mapping[str, Any], targets: int, row: MapShape, dtype: str
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype that an array of a split must have; ``part``: its entry in the manifest."""
    samples, integers = part["samples"], np.dtype(np.int64)
    if name.endswith(LABELS):
        return ((samples, targets), np.dtype(np.float32)) if targets else ((samples,), integers)
    if name.endswith(LENGTHS):
        return (part["sequences"],), integers
    return (samples, row.channels, row.height, row.width), np.dtype(dtype)
