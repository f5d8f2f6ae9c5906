"""A store: prepared pictures on disk, readable by split, range and window of the plane.

Knows: the manifest, how chunks are checked and numbers turned back into values. Does not know: how it was
made.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from cotswold.data import group, layout
from cotswold.data.manifest import chunk_of, read_manifest
from cotswold.data.preparation import Transform
from cotswold.data.whiteness import Whiteness, measure
from cotswold.data.whitening import Float32
from cotswold.errors import StoreError, UserError
from cotswold.geometry import Box, MapShape

_MEASURED_BYTES = 256 << 20


class Store:
    """Open a finished store. Raises StoreError where it is unfinished, or a chunk is missing or cut short."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        self._manifest = read_manifest(self.path)
        for key, (size, _) in self._manifest["chunks"].items():
            file = self.path / key
            if not file.is_file():
                raise StoreError(
                    f"chunk {key} of {self.path} is missing; prepare the store anew or copy it again"
                )
            if file.stat().st_size != size:
                raise StoreError(
                    f"chunk {key} of {self.path} has {file.stat().st_size:,} bytes instead of {size:,}; "
                    "prepare the store anew or copy it again"
                )

    @property
    def splits(self) -> dict[str, int]:
        """Pictures in each split: `train`, and `validation` and `test` where they have any."""
        return {name: part["pictures"] for name, part in self._manifest["splits"].items()}

    @property
    def shape(self) -> MapShape:
        """The map of one picture."""
        return self.transform.preparation.shape

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; empty without labels."""
        return tuple(self._manifest["classes"])

    @property
    def identity(self) -> str:
        """A hash of everything in the store."""
        return str(self._manifest["checksum"])

    @property
    def request(self) -> dict[str, Any]:
        """What the store was asked to be: identity of the source, preparation, splits, seed, limit."""
        return dict(self._manifest["request"])

    @property
    def broken(self) -> tuple[int, tuple[str, ...]]:
        """How many pictures of the source could not be read, and the first thousand of them with the
        reason."""
        return self._manifest["broken"]["count"], tuple(self._manifest["broken"]["files"])

    @cached_property
    def transform(self) -> Transform:
        """What turns any other picture into the space of this store."""
        return Transform.from_state(self._manifest["transform"])

    def shard(self, split: str) -> int:
        """Pictures in one file: ranges that begin and end at its multiples are read fastest."""
        return int(self._part(split)["shard"])

    def labels(self, split: str) -> NDArray[np.int64]:
        """The labels of a split, -1 without labels: (image,)."""
        self._part(split)
        array = self._array(f"{layout.folder(split)}/{layout.LABELS}")
        return np.asarray(
            self._checked(array, f"{layout.folder(split)}/{layout.LABELS}", slice(None)), np.int64
        )

    def read(self, split: str, start: int, stop: int, box: Box | None = None) -> Float32:
        """Pictures ``start`` to ``stop`` of a split, or a window (y, x) of them: float32 (image, channel, y,
        x)."""
        return self.transform.restored(self.read_stored(split, start, stop, box))

    def read_stored(self, split: str, start: int, stop: int, box: Box | None = None) -> NDArray[Any]:
        """As `read`, but float16 or uint8 as the store keeps them; `transform.restored` makes values of
        them. Only the chunks that a window touches are read, none for one that is empty."""
        count, plane = self._part(split)["pictures"], Box.whole((self.shape.height, self.shape.width))
        window = plane if box is None else box
        if not 0 <= start <= stop <= count:
            raise UserError(
                f"pictures {start} to {stop} are not in {split} of {self.path}, which has {count}"
            )
        if len(window.start) != 2 or not plane.contains(window):
            raise UserError(f"{window} is no window of a plane of {self.shape.height} x {self.shape.width}")
        if window.size == 0:
            stored = self.transform.preparation.dtype
            return np.empty((stop - start, self.shape.channels, *window.shape), stored)
        name = f"{layout.folder(split)}/{layout.PICTURES}"
        return self._checked(self._array(name), name, (slice(start, stop), slice(None), *window.slices))

    def verify(self) -> None:
        """Read every file and compare it with the manifest. Raises StoreError naming the first that
        differs."""
        for key, chunk in self._manifest["chunks"].items():
            if chunk_of(self.path / key) != tuple(chunk):
                raise self._corrupted(key)

    def whiteness(self, split: str = "validation", pictures: int = 4000) -> Whiteness:
        """The radial spectrum and colour correlation of the first ``pictures`` of a split (256 MiB at
        most)."""
        most = max(1, _MEASURED_BYTES // (4 * self.shape.size))
        count = min(self._part(split)["pictures"], pictures, most)
        return measure(self.read(split, 0, count), self.transform.preparation.band)

    def _part(self, split: str) -> dict[str, Any]:
        parts: dict[str, dict[str, Any]] = self._manifest["splits"]
        if split not in parts:
            raise UserError(f"{self.path} has no split {split!r}; it has {', '.join(parts)}")
        return parts[split]

    def _array(self, name: str) -> zarr.Array[Any]:
        if name not in self._arrays:
            try:
                self._arrays[name] = group.opened(self.path / name)
            except Exception as error:  # zarr meets damaged descriptions with every kind of exception
                raise self._corrupted(f"{name}/zarr.json") from error
        return self._arrays[name]

    @cached_property
    def _arrays(self) -> dict[str, zarr.Array[Any]]:
        return {}

    def _checked(self, array: zarr.Array[Any], name: str, selection: Any) -> NDArray[Any]:
        """Read; where that fails, find the chunk at fault. A chunk gone since opening would read as zeros."""
        keys = self._touched(name, selection)
        try:
            values = np.asarray(array[selection])
        except Exception as error:  # checksums, lengths and shard indices all fail in ways of their own
            bad = next((key for key in keys if not self._intact(key)), name)
            raise self._corrupted(bad) from error
        gone = next((key for key in keys if not (self.path / key).exists()), None)
        if gone is not None:
            raise self._corrupted(gone)
        return values

    def _touched(self, name: str, selection: Any) -> list[str]:
        """The files that a selection reads."""
        split = name.split("/")[1]
        if name.endswith(layout.LABELS):
            return layout.label_keys(split, self.splits[split])
        shard, rows = self.shard(split), selection[0]
        return [layout.shard_key(split, n) for n in range(rows.start // shard, -(-rows.stop // shard))]

    def _intact(self, key: str) -> bool:
        file = self.path / key
        return file.exists() and chunk_of(file) == tuple(self._manifest["chunks"][key])

    def _corrupted(self, key: str) -> StoreError:
        return StoreError(f"chunk {key} of {self.path} is damaged; prepare the store anew or copy it again")
