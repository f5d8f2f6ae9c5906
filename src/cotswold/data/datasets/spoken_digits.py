"""Spoken digits as frames: recordings named `<digit>_<speaker>_<number>.flac`, in a folder or zip.

Knows: names of recordings, states, held-out speakers; FLAC through soundfile. Does not know: mel bands
(`log_mel`), stores, networks.

The labels are states: the first, second and last third of a digit's frames, as in an untrained hidden Markov
model. In the sorted order of names, the last speaker is the test split and the one before is validation.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotswold.data.datasets import log_mel
from cotswold.data.formats.array_files import UNPACKED_BYTES_MAX, size_error
from cotswold.data.formats.zip_archive import opened_zip
from cotswold.data.sources.base import hashed
from cotswold.data.sources.file_names import Labels, chosen
from cotswold.data.sources.folder import walk_files
from cotswold.data.sources.labels import LabelArray
from cotswold.data.sources.vectors import VectorArray, VectorSource
from cotswold.errors import MissingExtraError, SourceError, install

STATES = 3
"""States of a digit."""
_NAME = re.compile(r"^(?P<digit>\d)_(?P<speaker>[^_/]+)_(?P<number>\d+)\.flac$", re.IGNORECASE)
_SPEAKERS_LEAST = 3


def is_recording(name: str) -> bool:
    """True if a path is named like a recording of a digit."""
    return _NAME.match(PurePosixPath(name).name) is not None


def open_recordings(
    where: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels
) -> VectorSource:
    """Open recordings as sequences of frames (frame, 40); ``labels = "file"`` reads digits from the names.

    Raises SourceError for an unreadable recording and MissingExtraError without soundfile.
    """
    if labels == "folders":
        raise SourceError(f'{where} has its labels in the names of files; set labels = "file" or "none"')
    files = _Recordings(where)
    names = [files.names[index] for index in chosen(files.names, include, exclude, str(where))]
    splits = _splits([_fields(name)["speaker"] for name in names])
    lengths = [files.frames(name) for name in names]
    parts = [
        VectorArray(name, (rows, log_mel.BANDS), split, partial(files.load, name))
        for name, rows, split in zip(names, lengths, splits, strict=True)
    ]
    identity = hashed(["spoken digits", log_mel.VERSION, *((name, *files.identity(name)) for name in names)])
    states = [_states(int(_fields(name)["digit"]), rows) for name, rows in zip(names, lengths, strict=True)]
    classes = tuple(f"{digit} {third}/{STATES}" for digit in range(10) for third in range(1, STATES + 1))
    found = LabelArray(np.concatenate(states), classes) if labels == "file" else None
    return VectorSource(parts, identity, found, lengths)


class _Recordings:
    """Recordings by path; each process opens its own handle of a zip."""

    def __init__(self, where: Path) -> None:
        self._where, self._zipped = where, where.is_file()
        self._archive: Any = None
        paths = (
            self._open().namelist()
            if self._zipped
            else [path.relative_to(where).as_posix() for path in walk_files(where)]
        )
        self.names = sorted(filter(is_recording, paths))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_archive": None}

    def frames(self, name: str) -> int:
        """Return the number of frames of a recording, from its header."""
        soundfile = _soundfile()
        try:
            about = soundfile.info(io.BytesIO(self._bytes(name)))
        except (soundfile.LibsndfileError, RuntimeError) as error:
            raise self._unreadable(name, error) from error
        return log_mel.frames_of(int(about.frames), int(about.samplerate))

    def load(self, name: str) -> NDArray[np.float32]:
        """Return the frames of a recording (frame, 40)."""
        soundfile = _soundfile()
        try:
            samples, rate = soundfile.read(io.BytesIO(self._bytes(name)), dtype="float64", always_2d=True)
        except (soundfile.LibsndfileError, RuntimeError) as error:
            raise self._unreadable(name, error) from error
        return log_mel.log_mel(samples.mean(1), int(rate))

    def identity(self, name: str) -> tuple[object, ...]:
        """Return values that change with the recording."""
        if self._zipped:
            member = self._open().getinfo(name)
            return member.file_size, member.CRC
        return (hashed([self._bytes(name).hex()]),)

    def _bytes(self, name: str) -> bytes:
        try:
            if not self._zipped:
                return (self._where / name).read_bytes()
            archive = self._open()
            size = archive.getinfo(name).file_size
            if size > UNPACKED_BYTES_MAX:
                raise size_error(f"{self._where}/{name}", size)
            content: bytes = archive.read(name)
        except SourceError:
            raise
        except Exception as error:  # zip, zlib and the file system raise many kinds of errors
            raise self._unreadable(name, error) from error
        return content

    def _open(self) -> Any:
        if self._archive is None:
            self._archive = opened_zip(self._where)
        return self._archive

    def _unreadable(self, name: str, error: Exception) -> SourceError:
        return SourceError(f"{self._where}/{name} cannot be read ({error}); remove it or copy it again")


def _fields(name: str) -> dict[str, str]:
    match = _NAME.match(PurePosixPath(name).name)
    assert match is not None
    return match.groupdict()


def _splits(speakers: Sequence[str]) -> list[str]:
    """Return the split of each recording by its speaker; with fewer than three speakers, all are train."""
    names = sorted(set(speakers))
    held = dict(zip(names[-2:], ("validation", "test"), strict=True)) if len(names) >= _SPEAKERS_LEAST else {}
    return [held.get(speaker, "train") for speaker in speakers]


def _states(digit: int, frames: int) -> NDArray[np.int64]:
    """Return the state of each frame: thirds of the digit."""
    return STATES * digit + np.arange(frames) * STATES // frames


def _soundfile() -> Any:
    try:
        import soundfile
    except ImportError as error:
        raise MissingExtraError(f"recordings in FLAC need soundfile; run {install('speech')}") from error
    return soundfile
