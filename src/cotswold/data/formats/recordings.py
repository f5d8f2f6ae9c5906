"""Recordings of sound as sequences of frames: files in a folder or zip, a class in each folder.

Knows: WAV by the standard library, other formats by soundfile, sampling rates. Does not know: mel bands
(`log_mel`), stores, networks.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from cotswold.data.datasets import log_mel
from cotswold.data.formats.array_files import UNPACKED_BYTES_MAX, size_error
from cotswold.data.formats.zip_archive import opened_zip
from cotswold.data.sources.base import hashed
from cotswold.data.sources.contents import ContentIdentity
from cotswold.data.sources.file_names import Labels, Paths, chosen
from cotswold.data.sources.folder import walk_files
from cotswold.data.sources.labels import LabelArray
from cotswold.data.sources.vectors import VectorArray, VectorSource
from cotswold.errors import MissingExtraError, SourceError, install

_SUFFIXES = (".wav", ".flac", ".ogg", ".aiff", ".aif", ".au")
_FULL_SCALE = {1: 1 << 7, 2: 1 << 15, 4: 1 << 31}


def is_audio(name: str) -> bool:
    """True for the path of a recording; False for hidden files."""
    path = PurePosixPath(name)
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in path.parts)
    return path.suffix.lower() in _SUFFIXES and not hidden


class Recordings:
    """Recordings by path in a folder or zip; each process opens its own handle of a zip.

    Args:
        where: The folder or zip.
    """

    def __init__(self, where: Path) -> None:
        self._where, self._zipped = where, where.is_file()
        self._archive: Any = None
        paths = (
            self._open().namelist()
            if self._zipped
            else [path.relative_to(where).as_posix() for path in walk_files(where)]
        )
        self.names = sorted(filter(is_audio, paths))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_archive": None}

    def extent(self, name: str) -> tuple[int, int]:
        """Return the number of samples and the sampling rate in Hz of a recording, from its header.

        Raises SourceError.
        """
        try:
            with self._opened(name) as file, wave.open(file) as recording:
                return recording.getnframes(), recording.getframerate()
        except (wave.Error, EOFError):
            pass
        except Exception as error:  # as in `_bytes`
            raise self._unreadable(name, error) from error
        soundfile = _soundfile(name)
        place = io.BytesIO(self._bytes(name)) if self._zipped else str(self._where / name)
        try:
            about = soundfile.info(place)
        except (soundfile.LibsndfileError, RuntimeError) as error:
            raise self._unreadable(name, error) from error
        return int(about.frames), int(about.samplerate)

    def load(self, name: str) -> NDArray[np.float32]:
        """Return the frames of a recording (frame, 40). Raises SourceError."""
        samples, expected, rate = self._decoded(name)
        if len(samples) != expected:
            raise self._unreadable(name, f"its header says {expected:,} samples, it has {len(samples):,}")
        return log_mel.log_mel(samples, rate)

    def samples(self, name: str) -> NDArray[np.float64]:
        """Return a recording (sample,) from -1 to 1, the mean of its channels. Raises SourceError."""
        return self._decoded(name)[0]

    def _decoded(self, name: str) -> tuple[NDArray[np.float64], int, int]:
        """Return the samples, their number as the header says, and the sampling rate, with one reading."""
        content = self._bytes(name)
        try:
            with wave.open(io.BytesIO(content)) as file:
                return _mono(file), file.getnframes(), file.getframerate()
        except (wave.Error, EOFError):
            pass
        soundfile = _soundfile(name)
        try:
            with soundfile.SoundFile(io.BytesIO(content)) as file:
                expected, rate = int(file.frames), int(file.samplerate)
                samples = file.read(dtype="float64", always_2d=True)
        except (soundfile.LibsndfileError, RuntimeError) as error:
            raise self._unreadable(name, error) from error
        return samples.mean(1), expected, rate

    def identity(self, names: Sequence[str], kind: str) -> str | ContentIdentity:
        """Return a value that changes with recordings, or a function that computes it.

        Args:
            names: The recordings.
            kind: The kind of their source.
        """
        if not self._zipped:
            parts = (kind, log_mel.VERSION, *names)
            return ContentIdentity(self._where, self._where, tuple(names), parts)
        members = [self._open().getinfo(name) for name in names]
        return hashed(
            [kind, log_mel.VERSION, *((each.filename, each.file_size, each.CRC) for each in members)]
        )

    def _opened(self, name: str) -> IO[bytes]:
        if self._zipped:
            found: IO[bytes] = self._open().open(name)
            return found
        return (self._where / name).open("rb")

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

    def _unreadable(self, name: str, error: object) -> SourceError:
        return SourceError(f"{self._where}/{name} cannot be read ({error}); remove it or copy it again")


def open_audio(
    where: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels
) -> VectorSource:
    """Open recordings as sequences of frames (frame, 40): log energies of mel bands.

    ``labels = "folders"`` labels every frame by the folder of its recording.

    Raises:
        SourceError: for an unreadable recording, or recordings with different sampling rates.
        MissingExtraError: without soundfile, for formats other than WAV of integers.
    """
    if labels == "file":
        raise SourceError(f'{where} has recordings without label files; set labels = "folders" or "none"')
    files = Recordings(where)
    names = [files.names[index] for index in chosen(files.names, include, exclude, str(where))]
    paths = Paths(str(where), names, labels)
    extents = [files.extent(name) for name in names]
    rate = extents[0][1]
    for name, (_, other) in zip(names, extents, strict=True):
        if other != rate:
            raise SourceError(
                f"{where}/{name} has {other:,} samples per second, but {names[0]} has {rate:,}; bands of "
                "different rates are not comparable: resample the recordings to one rate"
            )
    lengths = [log_mel.frames_of(count, rate) for count, _ in extents]
    parts = [
        VectorArray(name, (rows, log_mel.BANDS), paths.split_of(index), partial(files.load, name))
        for index, (name, rows) in enumerate(zip(names, lengths, strict=True))
    ]
    identity = files.identity(names, "recordings")
    found = None
    if paths.labels is not None:
        found = LabelArray(np.repeat(paths.labels, lengths).astype(np.int64), paths.classes)
    source = VectorSource(parts, identity, found, lengths)
    source.rate = rate
    return source


def _mono(file: wave.Wave_read) -> NDArray[np.float64]:
    """Return the mean of the channels of integers of 8 to 32 bits, from -1 to 1."""
    width, channels = file.getsampwidth(), file.getnchannels()
    content = file.readframes(file.getnframes())
    content = content[: len(content) // (width * channels) * width * channels]
    if width == 1:
        values = np.frombuffer(content, np.uint8).astype(np.float64) - _FULL_SCALE[1]
    elif width == 3:
        whole = np.zeros((len(content) // 3, 4), np.uint8)
        whole[:, 1:] = np.frombuffer(content, np.uint8).reshape(-1, 3)
        width, values = 4, whole.view("<i4")[:, 0].astype(np.float64)
    else:
        values = np.frombuffer(content, f"<i{width}").astype(np.float64)
    mean: NDArray[np.float64] = values.reshape(-1, channels).mean(1) / _FULL_SCALE[width]
    return mean


def _soundfile(name: str) -> Any:
    try:
        import soundfile
    except ImportError as error:
        raise MissingExtraError(
            f"{name} is not WAV of integers, so it needs soundfile; run {install('speech')}"
        ) from error
    return soundfile
