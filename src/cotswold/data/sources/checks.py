"""Checks of the values that a source returns; errors name the source and the sample.

Knows: the interface of sources. Does not know: file formats, stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cotswold.data.sources.base import SampleSource, Source
from cotswold.errors import CotswoldError, SourceError, describe_exception


def described(source: SampleSource) -> str:
    """Return the name of a source without a path: its class."""
    return f"{type(source).__module__}.{type(source).__qualname__}"


def name_of(source: SampleSource, index: int) -> str:
    """Return the name of a sample, or its index if the source cannot name it."""
    try:
        return f"{source.name(index)} of {described(source)}"
    except Exception:  # any error: the caller is about to report another one
        return f"sample {index} of {described(source)}"


@contextmanager
def wrap_source_errors(source: SampleSource, fault: str, remedy: str) -> Iterator[None]:
    """Convert exceptions of a third-party source into SourceError: ``fault``, the reason and ``remedy``.

    Cotswold's own errors pass through.
    """
    try:
        yield
    except (CotswoldError, MemoryError):
        raise
    except Exception as error:
        if type(source).__module__.partition(".")[0] == __name__.partition(".")[0]:
            raise
        raise SourceError(
            f"{fault} ({describe_exception(error, type(source).__module__)}); {remedy}"
        ) from error


def read_image(source: Source, index: int) -> tuple[str, Image.Image]:
    """Return the name and image of a sample.

    Raises BrokenImageError, and SourceError if a third-party source fails or returns no image.
    """
    try:
        name = source.name(index)
        image: object = source.read(index)
    except Exception:
        with wrap_source_errors(
            source,
            f"{name_of(source, index)} cannot be read",
            "fix the source, or raise BrokenImageError in it to skip the sample",
        ):
            raise
    if not isinstance(image, Image.Image):
        remedy = "; wrap an array in PIL.Image.fromarray" if isinstance(image, np.ndarray) else ""
        raise SourceError(
            f"{name_of(source, index)}: read must return a PIL image, got {_kind(image)}{remedy}"
        )
    return name, image


def labels_of(source: SampleSource, indices: NDArray[np.int64]) -> NDArray[Any]:
    """Return labels as `SampleSource.labels` does. Raises SourceError if a label is not a class."""
    with wrap_source_errors(source, f"the labels of {described(source)} cannot be read", "fix the source"):
        labels = source.labels(indices)
    if source.classes and not source.targets:
        wrong = np.flatnonzero((labels < 0) | (labels >= len(source.classes)))
        if len(wrong):
            raise SourceError(
                f"{name_of(source, int(indices[wrong[0]]))} has label {labels[wrong[0]]}, but the source has "
                f"the classes 0 to {len(source.classes) - 1}; give every sample one of them, or remove it"
            )
    return labels


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
