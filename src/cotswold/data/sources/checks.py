"""What a source answers, checked: a mistake in it is told with the names of the source and the sample.

Knows: what sources promise. Does not know: formats of files, stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cotswold.data.sources.base import SampleSource, Source
from cotswold.errors import CotswoldError, SourceError, told


def described(source: SampleSource) -> str:
    """What to call a source that has no path: its class."""
    return f"{type(source).__module__}.{type(source).__qualname__}"


def name_of(source: SampleSource, index: int) -> str:
    """What to call a sample, also where its source cannot say it."""
    try:
        return f"{source.name(index)} of {described(source)}"
    except Exception:  # whatever it is, another sentence is on its way
        return f"sample {index} of {described(source)}"


@contextmanager
def asking(source: SampleSource, fault: str, remedy: str) -> Iterator[None]:
    """Raise SourceError, ``fault`` with its reason and ``remedy``, for whatever a source of another package
    raises inside that is none of our errors."""
    try:
        yield
    except (CotswoldError, MemoryError):
        raise
    except Exception as error:
        if type(source).__module__.partition(".")[0] == __name__.partition(".")[0]:
            raise
        raise SourceError(f"{fault} ({told(error, type(source).__module__)}); {remedy}") from error


def picture_of(source: Source, index: int) -> tuple[str, Image.Image]:
    """Name and picture of a sample. Raises BrokenPictureError, and SourceError where a source of another
    package fails or gives no picture."""
    with asking(
        source,
        f"{name_of(source, index)} cannot be read",
        "mend the source, or have it raise BrokenPictureError to leave the sample out",
    ):
        name = source.name(index)
        picture: object = source.read(index)
    if not isinstance(picture, Image.Image):
        remedy = "; wrap an array in PIL.Image.fromarray" if isinstance(picture, np.ndarray) else ""
        raise SourceError(
            f"{name_of(source, index)}: read gives {_kind(picture)}, and must give a PIL picture{remedy}"
        )
    return name, picture


def labels_of(source: SampleSource, indices: NDArray[np.int64]) -> NDArray[Any]:
    """Labels, as `SampleSource.labels`; raises SourceError for one that is no class of the source."""
    with asking(source, f"the labels of {described(source)} cannot be read", "mend the source"):
        labels = source.labels(indices)
    if source.classes and not source.targets:
        wrong = np.flatnonzero((labels < 0) | (labels >= len(source.classes)))
        if len(wrong):
            raise SourceError(
                f"{name_of(source, int(indices[wrong[0]]))} has label {labels[wrong[0]]}, and the source has "
                f"the classes 0 to {len(source.classes) - 1}; give every sample one of them, or leave it out"
            )
    return labels


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
