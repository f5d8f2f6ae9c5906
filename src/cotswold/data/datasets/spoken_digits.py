"""Spoken digits as frames: recordings named `<digit>_<speaker>_<number>.flac`, in a folder or zip.

Knows: names of recordings, states, held-out speakers. Does not know: decoding, stores, networks.

The labels are states: the first, second and last third of a digit's frames, as in an untrained hidden Markov
model. In the sorted order of names, the last speaker is the test split and the one before is validation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from cotswold.data.datasets import log_mel
from cotswold.data.formats.recordings import Recordings
from cotswold.data.sources.file_names import Labels, chosen
from cotswold.data.sources.labels import LabelArray
from cotswold.data.sources.vectors import VectorArray, VectorSource
from cotswold.errors import SourceError

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
    files = Recordings(where)
    digits = list(filter(is_recording, files.names))
    names = [digits[index] for index in chosen(digits, include, exclude, str(where))]
    splits = _splits([_fields(name)["speaker"] for name in names])
    lengths = [log_mel.frames_of(*files.extent(name)) for name in names]
    parts = [
        VectorArray(name, (rows, log_mel.BANDS), split, partial(files.load, name))
        for name, rows, split in zip(names, lengths, splits, strict=True)
    ]
    identity = files.identity(names, "spoken digits")
    states = [_states(int(_fields(name)["digit"]), rows) for name, rows in zip(names, lengths, strict=True)]
    classes = tuple(f"{digit} {third}/{STATES}" for digit in range(10) for third in range(1, STATES + 1))
    found = LabelArray(np.concatenate(states), classes) if labels == "file" else None
    return VectorSource(parts, identity, found, lengths)


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
