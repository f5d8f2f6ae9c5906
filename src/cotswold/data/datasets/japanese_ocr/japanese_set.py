"""A finished set of Japanese print: scans, training samples by number, held-out parts.

Knows: the folder, its manifest and arrays. Does not know: typefaces, the making of scans, training.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotswold.data.datasets.japanese_ocr import MANIFEST, frequencies
from cotswold.data.datasets.japanese_ocr.characters import classes
from cotswold.data.datasets.japanese_ocr.plan import PARTS, Part, Request
from cotswold.data.datasets.japanese_ocr.printing import SIDE, Bits
from cotswold.data.datasets.japanese_ocr.samples import GreySamples, downscale, generate_samples
from cotswold.data.store.manifest import chunk_of
from cotswold.errors import SourceError
from cotswold.files import MalformedError, expanded, read_object, take
from cotswold.files.checksum import seal

FORMAT = "cotswold japanese-ocr 1"
_REMEDY = "make the set again with `cotswold data make japanese-ocr`"


def array_file(part: str, array: str) -> str:
    """Return the file of one array of a part."""
    return f"{part}.{array}.npy"


class JapaneseSet:
    """A finished set of Japanese print. Cheap to pickle: arrays are mapped on demand.

    Args:
        folder: The folder of the set.

    Raises:
        SourceError: if the set is unfinished, altered or damaged.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = expanded(folder)
        self._manifest = _read(self.path)
        try:
            self.request = _request(take(self._manifest, "request", dict))
            """The request that made the set."""
            self._arrays = take(self._manifest, "arrays", dict)
        except (MalformedError, TypeError) as error:
            raise SourceError(f"{self.path / MANIFEST} {error}; {_REMEDY}") from error
        for name, (size, _) in self._arrays.items():
            file = self.path / name
            if not file.is_file() or file.stat().st_size != size:
                raise SourceError(f"{file} is missing or truncated; {_REMEDY}")

    def __reduce__(self) -> tuple[type[JapaneseSet], tuple[Path]]:
        return JapaneseSet, (self.path,)

    def __repr__(self) -> str:
        return f"<JapaneseSet {str(self.path)!r}: {self.request.samples:,} samples of {self.originals:,}>"

    @property
    def classes(self) -> tuple[str, ...]:
        """The characters, indexed by class number."""
        return classes()

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for users."""
        return tuple(map(str, self._manifest["notes"]))

    @property
    def families(self) -> list[dict[str, Any]]:
        """The families: name, held_out, lacks, faces (design, file, digest)."""
        found: list[dict[str, Any]] = self._manifest["families"]
        return found

    @property
    def identity(self) -> str:
        """A hash that changes with the set, but not with its location."""
        return str(self._manifest["checksum"])

    @property
    def originals(self) -> int:
        """Number of scans from which training samples are made."""
        return len(self._labels("originals"))

    @cached_property
    def frequencies(self) -> NDArray[np.int64]:
        """Number of originals of each class (class,)."""
        return np.bincount(self._labels("originals"), minlength=len(classes())).astype(np.int64)

    def most_frequent(self, share: float = 0.4) -> NDArray[np.int64]:
        """Return the smallest set of classes that makes up ``share`` of the originals.

        The paper reports its error on 0.4 separately.

        Args:
            share: Fraction of the originals.
        """
        return frequencies.most_frequent(self.frequencies, share)

    def samples(self, indices: NDArray[np.int64]) -> GreySamples:
        """Return training samples by number: uint8 (n, 400), 255 is ink.

        Args:
            indices: Numbers from 0, in any order; sample i is a function of (seed, i).
        """
        return generate_samples(self.scans("originals"), np.asarray(indices, np.int64), self.request.seed)

    def labels(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the classes of training samples by number, (n,).

        Args:
            indices: Numbers from 0, in any order.
        """
        labels = self._labels("originals")
        return labels[np.asarray(indices, np.int64) % len(labels)].astype(np.int64)

    def held_out(self, part: Part) -> tuple[GreySamples, NDArray[np.int64]]:
        """Return the samples, uint8 (n, 400), and classes (n,) of a held-out part.

        Args:
            part: `validation`, `degradations` or `families`.
        """
        return downscale(self.scans(part)), self.held_out_labels(part)

    def held_out_labels(self, part: Part) -> NDArray[np.int64]:
        """Return the classes of a held-out part, (n,).

        Args:
            part: `validation`, `degradations` or `families`.
        """
        return self._labels(part).astype(np.int64)

    def scans(self, part: Part) -> Bits:
        """Return the scans of a part as rows of bits (n, 64).

        Args:
            part: Name of the part.
        """
        return self._mapped(part, "scans", np.uint64, (SIDE,))

    def faces(self, part: Part) -> NDArray[np.uint16]:
        """Return the face of each scan of a part, numbered over all `families`: (n,).

        Args:
            part: Name of the part.
        """
        return self._mapped(part, "faces", np.uint16, ())

    def _labels(self, part: Part) -> NDArray[np.uint16]:
        return self._mapped(part, "labels", np.uint16, ())

    def _mapped(self, part: Part, array: str, dtype: type, inner: tuple[int, ...]) -> NDArray[Any]:
        if part not in PARTS:
            raise SourceError(f"{self.path} has no part {part!r}; it has {', '.join(PARTS)}")
        name = array_file(part, array)
        if name not in self._open:
            file = self.path / name
            if list(chunk_of(file)) != self._arrays.get(name):
                raise SourceError(f"{file} is damaged (its checksum does not match); {_REMEDY}")
            loaded = np.load(file, mmap_mode="r", allow_pickle=False)
            if loaded.dtype != dtype or loaded.shape[1:] != inner or not len(loaded):
                raise SourceError(f"{file} contains {loaded.dtype} of shape {loaded.shape}; {_REMEDY}")
            self._open[name] = loaded
        return self._open[name]

    @cached_property
    def _open(self) -> dict[str, NDArray[Any]]:
        return {}


def _request(state: dict[str, Any]) -> Request:
    return Request(**{**state, "held_families": tuple(state.get("held_families", ()))})


def _read(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = read_object(path)
    except FileNotFoundError as error:
        raise SourceError(
            f"{folder} is not a finished set (no {MANIFEST}); make or finish it with "
            "`cotswold data make japanese-ocr`"
        ) from error
    except OSError as error:
        raise SourceError(f"{path} cannot be read ({error.strerror}); {_REMEDY}") from error
    except MalformedError as error:
        raise SourceError(f"{path} {error}; {_REMEDY}") from error
    if manifest.get("format") != FORMAT:
        raise SourceError(f"{path} is not of the format {FORMAT!r}; {_REMEDY}")
    checksum = manifest.get("checksum")
    if checksum != seal({name: value for name, value in manifest.items() if name != "checksum"}):
        raise SourceError(f"{path} was altered (its checksum does not match); {_REMEDY}")
    return manifest
