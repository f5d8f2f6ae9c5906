"""A store: prepared samples on disk, readable by split, range and window of the plane.

Knows: the manifest, checks of chunks, context frames, conversion of stored numbers to values. Does not know:
how the store was made.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from torch import Tensor

from cotswold.data.preprocessing import AnyTransform, as_image_transform, transform_from_state
from cotswold.data.preprocessing.table_schema import describe_preparation
from cotswold.data.preprocessing.target_scale import TargetScale
from cotswold.data.preprocessing.vectors import VectorPreparation
from cotswold.data.preprocessing.whiteness import Whiteness, measure
from cotswold.data.preprocessing.whitening import Float32
from cotswold.data.sources.base import Kind
from cotswold.data.sources.sequences import Integers, neighbours
from cotswold.data.store import layout as store_layout
from cotswold.data.store import zarr_group
from cotswold.data.store.layout import Chunk
from cotswold.data.store.manifest import (
    MANIFEST,
    REMEDY,
    broken_note,
    chunk_fault,
    damaged,
    linked_folders,
    read_manifest,
    visible_fault,
)
from cotswold.errors import StoreError, UserError
from cotswold.files import MalformedError, expanded
from cotswold.geometry import Box, MapShape
from cotswold.phrases import counted

_MEASURED_BYTES = 256 << 20


class Store:
    """A finished store of prepared samples, opened for reading.

    Args:
        path: Folder of the store.

    Raises:
        StoreError: if the store is unfinished, or a chunk is missing, truncated or a symbolic link.
    """

    path: Path
    transform: AnyTransform
    """The transform that prepares other samples like those of this store."""
    target_scale: TargetScale | None
    """The standardisation of regression targets; None for classes and for unscaled targets."""

    def __init__(self, path: str | Path) -> None:
        self._open(expanded(path))
        visible = (visible_fault(self.path, key, self._chunk(key)[0]) for key in self.files)
        fault = next(iter(self.links()), None) or next((each for each in visible if each is not None), None)
        if fault is not None:
            raise StoreError(fault)

    def _open(self, path: Path) -> None:
        self.path, self._manifest = path, read_manifest(path)
        self._lengths: dict[str, Integers] = {}
        self._arrays: dict[str, zarr.Array[Any]] = {}
        try:
            self.transform = transform_from_state(self._manifest["transform"])
            scale = self._manifest.get("target_scale")
            self.target_scale = None if scale is None else TargetScale.from_state(scale)
        except MalformedError as error:
            raise StoreError(f"{path / MANIFEST} {error}; {REMEDY}") from error

    def __reduce__(self) -> tuple[Callable[[str | Path], Store], tuple[Path]]:
        """Pickle by path: another process opens the store again."""
        return Store, (self.path,)

    @classmethod
    def unchecked(cls, path: str | Path) -> Store:
        """Open a store after checking only its manifest, to diagnose all faults.

        Args:
            path: Folder of the store.

        Raises:
            StoreError: if the manifest is missing or damaged.
        """
        store = cls.__new__(cls)
        store._open(expanded(path))
        return store

    def __repr__(self) -> str:
        splits = ", ".join(f"{name} {count:,}" for name, count in self.splits.items())
        labels = f"; {counted(len(self.classes), 'class')}" if self.classes else ""
        labels = f"; {counted(self.targets, 'regression target')}" if self.targets else labels
        return f"<cotswold.data.Store {str(self.path)!r}: {self.kind} of {self.shape}; {splits}{labels}>"

    @property
    def splits(self) -> dict[str, int]:
        """Number of samples in each non-empty split: `train`, `validation`, `test`."""
        return {name: part["samples"] for name, part in self._manifest["splits"].items()}

    @property
    def kind(self) -> Kind:
        """Kind of the samples: "images", "vectors" or "frames"."""
        return self.transform.preparation.kind

    @property
    def shape(self) -> MapShape:
        """Shape of a sample, (channel, y, x); a vector has one channel per number, and one pixel."""
        return self.transform.preparation.shape

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; empty without labels and for regression targets."""
        return tuple(self._manifest["classes"])

    @property
    def targets(self) -> int:
        """Numbers in each regression target; 0 for classes or without labels."""
        return int(self._manifest.get("targets", 0))

    @property
    def outputs(self) -> int:
        """Outputs of a network that learns the labels: the number of classes or targets; 0 without labels."""
        return len(self.classes) or self.targets

    def describe(self) -> dict[str, object]:
        """Return the contents of the store and its preparation, as JSON values."""
        lengths = {split: self.lengths(split) for split in self.splits}
        sequences = {split: len(each) for split, each in lengths.items() if each is not None}
        return {
            "kind": self.kind,
            "shape": str(self.shape),
            "splits": self.splits,
            **({"sequences": sequences} if sequences else {}),
            **({"classes": list(self.classes)} if self.classes else {}),
            **({"numbers_to_predict": self.targets} if self.targets else {}),
            **describe_preparation(self.transform.preparation.state()),
            "bytes": sum(path.stat().st_size for path in (self.path / key for key in self.files)),
            "identity": self.identity,
            "notes": list(self.notes),
        }

    @property
    def identity(self) -> str:
        """A hash of the whole contents of the store."""
        return str(self._manifest["checksum"])

    @property
    def request(self) -> dict[str, Any]:
        """The request that made the store: identity of the source, preparation, splits, seed, limit."""
        return dict(self._manifest["request"])

    @property
    def broken(self) -> tuple[int, tuple[str, ...]]:
        """Number of unreadable samples of the source, and the first thousand with their reasons."""
        return self._manifest["broken"]["count"], tuple(self._manifest["broken"]["files"])

    @property
    def preparation_notes(self) -> tuple[str, ...]:
        """Sentences on the splits and the conversion to 8 bits."""
        return (*self._manifest["notes"], *self._manifest["warnings"])

    @property
    def warnings(self) -> tuple[str, ...]:
        """The notes on classes that cannot be learnt or tested, and `broken_note`."""
        return (*self._manifest["warnings"], *([] if self.broken_note is None else [self.broken_note]))

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for users of the store: `preparation_notes` and `broken_note`."""
        return (*self.preparation_notes, *([] if self.broken_note is None else [self.broken_note]))

    @property
    def broken_note(self) -> str | None:
        """A sentence naming the first unreadable images; None if all were readable."""
        return broken_note(*self.broken)

    @property
    def files(self) -> list[str]:
        """Paths of all files except the manifest, relative to the store."""
        return list(self._manifest["chunks"])

    def shard(self, split: str) -> int:
        """Return the number of samples per file; ranges aligned to its multiples are read fastest.

        Args:
            split: Name of the split.
        """
        return int(self._part(split)["shard"])

    def labels(self, split: str) -> NDArray[Any]:
        """Return the labels of a split.

        Args:
            split: Name of the split.

        Returns:
            int64 (sample,), -1 without labels; or regression targets, float32 (sample, target).
        """
        self._part(split)
        name = f"{store_layout.folder(split)}/{store_layout.LABELS}"
        return np.asarray(self._read_checked(self._array(name), name, slice(None)), self._described(name)[1])

    def learnable(self, labels: Tensor) -> Tensor:
        """Convert labels to what a network learns: standardised regression targets, or unchanged classes.

        Args:
            labels: int64 (sample,) or float32 (sample, target).
        """
        return labels if self.target_scale is None else self.target_scale.scaled(labels)

    def lengths(self, split: str) -> Integers | None:
        """Return the number of frames of each sequence of a split, in stored order; None for other data.

        Args:
            split: Name of the split.

        Raises:
            StoreError: if the lengths are damaged.
        """
        if not self._part(split).get("sequences"):
            return None
        if split not in self._lengths:
            name = f"{store_layout.folder(split)}/{store_layout.LENGTHS}"
            lengths = np.asarray(self._read_checked(self._array(name), name, slice(None)), np.int64)
            if int(lengths.min()) < 1 or int(lengths.sum()) != self._part(split)["samples"]:
                raise StoreError(damaged(self.path, name))
            self._lengths[split] = lengths
        return self._lengths[split]

    def read(self, split: str, start: int, stop: int, box: Box | None = None) -> Float32:
        """Read samples ``start`` to ``stop`` of a split, or a window of them.

        Args:
            split: Name of the split.
            start: First sample.
            stop: End of the range, exclusive.
            box: A window (y, x) of the plane. [whole]

        Returns:
            float32 (sample, channel, y, x).

        Raises:
            UserError: if the samples or the window do not exist.
            StoreError: if a chunk is damaged.
        """
        return self.transform.restored(self.read_stored(split, start, stop, box))

    def read_stored(self, split: str, start: int, stop: int, box: Box | None = None) -> NDArray[Any]:
        """Read samples as `read` does, but in the stored dtype; `transform.restored` converts them to values.

        Only the chunks that intersect the window are read; an empty window reads none.

        Args:
            split: Name of the split.
            start: First sample.
            stop: End of the range, exclusive.
            box: A window (y, x) of the plane. [whole]

        Returns:
            (sample, channel, y, x) of the store's dtype.

        Raises:
            UserError: if the samples or the window do not exist.
            StoreError: if a chunk is damaged.
        """
        count, plane = self._part(split)["samples"], Box.whole((self.shape.height, self.shape.width))
        window = plane if box is None else box
        if not 0 <= start <= stop <= count:
            raise UserError(f"samples {start} to {stop} are not in {split} of {self.path}, which has {count}")
        if len(window.start) != 2 or not plane.contains(window):
            raise UserError(
                f"{window} is not a window of a plane of {self.shape.height} x {self.shape.width}"
            )
        if window.size == 0:
            stored = self.transform.preparation.dtype
            return np.empty((stop - start, self.shape.channels, *window.shape), stored)
        if self.shape != self.transform.preparation.row:
            return self._frames_with_context(split, start, stop)
        return self._rows(split, start, stop, window)

    def _rows(self, split: str, start: int, stop: int, window: Box) -> NDArray[Any]:
        name = f"{store_layout.folder(split)}/{store_layout.SAMPLES}"
        return self._read_checked(self._array(name), name, (slice(start, stop), slice(None), *window.slices))

    def _frames_with_context(self, split: str, start: int, stop: int) -> NDArray[Any]:
        """Return frames with their neighbours; the store contains every frame once."""
        preparation, lengths = self.transform.preparation, self.lengths(split)
        assert isinstance(preparation, VectorPreparation) and lengths is not None, "only frames are joined"
        around = neighbours(np.arange(start, stop), lengths, preparation.context)
        first, last = int(around.min(initial=stop)), int(around.max(initial=stop - 1)) + 1
        frames = self._rows(split, first, last, Box.whole((1, 1)))
        return frames[around - first].reshape(stop - start, self.shape.channels, 1, 1)

    def verify(self) -> None:
        """Read every file and compare it with the manifest.

        Raises:
            StoreError: naming the first file that differs.
        """
        for key in self.files:
            fault = self.fault_of(key)
            if fault is not None:
                raise StoreError(fault)

    def links(self) -> list[str]:
        """Return a sentence for each folder of the store that is a symbolic link; normally empty."""
        return linked_folders(self.path, self.files)

    def fault_of(self, key: str) -> str | None:
        """Return a sentence on the fault of a file in `files`; None if it is intact.

        Args:
            key: Path of the file, relative to the store.
        """
        return chunk_fault(self.path, key, self._chunk(key))

    def _chunk(self, key: str) -> Chunk:
        size, crc = self._manifest["chunks"][key]
        return size, crc

    def whiteness(self, split: str = "validation", images: int = 4000) -> Whiteness:
        """Return the radial spectrum and colour correlation of the first images of a split.

        Args:
            split: Name of the split.
            images: Maximum number of images; at most 256 MiB are read.

        Raises:
            UserError: if the samples are not images.
        """
        cutoff = as_image_transform(self.transform).preparation.whiten_cutoff
        most = max(1, _MEASURED_BYTES // (4 * self.shape.size))
        count = min(self._part(split)["samples"], images, most)
        return measure(self.read(split, 0, count), cutoff)

    def _part(self, split: str) -> dict[str, Any]:
        parts: dict[str, dict[str, Any]] = self._manifest["splits"]
        if split not in parts:
            raise UserError(f"{self.path} has no split {split!r}; it has {', '.join(parts)}")
        return parts[split]

    def _array(self, name: str) -> zarr.Array[Any]:
        if name not in self._arrays:
            described = f"{name}/zarr.json"
            if self.fault_of(described) is not None:
                raise StoreError(damaged(self.path, described))
            try:
                array = zarr_group.open_array(self.path / name)
            except Exception as error:  # zarr raises many kinds of errors for damaged metadata
                raise StoreError(damaged(self.path, described)) from error
            wanted = self._described(name)
            if (array.shape, array.dtype) != wanted:
                raise StoreError(
                    f"{described} of {self.path} says {array.dtype} of shape {array.shape}, but the manifest "
                    f"{wanted[1]} of shape {wanted[0]}; {REMEDY}"
                )
            self._arrays[name] = array
        return self._arrays[name]

    def _described(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and dtype of an array, from the manifest."""
        preparation = self.transform.preparation
        part = self._part(name.split("/")[1])
        return store_layout.array_form(name, part, self.targets, preparation.row, preparation.dtype)

    def _read_checked(self, array: zarr.Array[Any], name: str, selection: Any) -> NDArray[Any]:
        """Read a selection; on failure, find the chunk at fault.

        A chunk that was deleted after opening would read as zeros, so its existence is checked afterwards.
        """
        keys = self._files_of(name, selection)
        try:
            values = np.asarray(array[selection])
        except Exception as error:  # checksums, lengths and shard indices raise many kinds of errors
            bad = next((key for key in keys if self.fault_of(key) is not None), name)
            raise StoreError(damaged(self.path, bad)) from error
        gone = next((key for key in keys if not (self.path / key).exists()), None)
        if gone is not None:
            raise StoreError(damaged(self.path, gone))
        return values

    def _files_of(self, name: str, selection: Any) -> list[str]:
        """Return the files that a selection reads."""
        split = name.split("/")[1]
        if name.endswith(store_layout.SAMPLES):
            shard, rows = self.shard(split), selection[0]
            return store_layout.shard_keys(split, rows.stop, shard)[rows.start // shard :]
        return store_layout.side_keys(name, self._part(split), self.targets)
