"""Conversion of values with more than 8 bits to grey levels, by one range for the whole source.

Knows: dtypes, ranges, bits. Does not know: files, images as such.

With a range per image, a dark image would become as bright as a light one. With a range from a subset, the
other images would be clipped. So one pass over all images determines the range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK_BYTES = 16 << 20
_BITS_MAX = 16
_BRIGHT = 16
"""Floats in 0..255 must reach this value; otherwise fewer than 16 grey levels would result."""


@dataclass(frozen=True)
class Levels:
    """A linear map of ``low`` to 0 and ``high`` to 255 with clipping, or a right shift of integers
    by ``shift`` bits.
    """

    low: float
    high: float
    shift: int | None = None

    def apply(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        """Return the grey levels of finite values."""
        if self.shift is not None:
            scaled = values >> self.shift
        else:
            from_black = values - self.low if self.low else values
            scaled = np.rint(from_black * (255 / (self.high - self.low or 1)))
        levels: NDArray[np.uint8] = np.clip(scaled, 0, 255).astype(np.uint8)
        return levels


@dataclass(frozen=True)
class Range:
    """Minimum and maximum of values that are all integers or all floats."""

    low: float
    high: float
    integers: bool

    def __or__(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high), self.integers)

    @property
    def levels(self) -> Levels:
        """The map to grey levels for this range.

        Integers from 0 keep their 8 most significant bits, counted from the 8 to 16 bits of the maximum; 0
        and 1 become black and white. Floats in 0..1 or 0..255 keep that range, but 0..255 only if the maximum
        is at least 16: a maximum slightly above 1 means that values in 0..1 were rescaled. All others are
        stretched from the minimum to the maximum.
        """
        if self.low < 0 or self.high >= 1 << _BITS_MAX or (not self.integers and self.high > 255):
            return Levels(self.low, self.high)
        if self.high <= 1:
            return Levels(0, 1)
        if not self.integers and self.high < _BRIGHT:
            return Levels(self.low, self.high)
        return Levels(0, 255, self._bits - 8 if self.integers else None)

    @property
    def _bits(self) -> int:
        return max(8, int(self.high).bit_length())

    def __str__(self) -> str:
        """Return the range and its grey levels as part of a sentence."""
        kind = "integers" if self.integers else "floats"
        levels = self.levels
        taken = f"{levels.low:g}..{levels.high:g}" if levels.shift is None else f"{self._bits} bits"
        return f"{kind} from {self.low:g} to {self.high:g} are read as {taken}"


def is_deep(values: NDArray[Any]) -> bool:
    """True if values have more than 8 bits and need a map to grey levels."""
    return values.dtype not in (np.uint8, np.bool_)


def is_finite(values: NDArray[Any]) -> bool:
    """True if no value is infinite or NaN; makes no copy."""
    return values.dtype.kind in "iu" or bool(np.isfinite(values.min()) and np.isfinite(values.max()))


def range_of(values: NDArray[Any]) -> Range | None:
    """Return the range of images (image, ...), computed in blocks.

    Images with infinite or NaN values are ignored; the result is None if no others exist.
    """
    each = max(1, _BLOCK_BYTES // max(1, values[0].nbytes)) if len(values) else 1
    found: Range | None = None
    for start in range(0, len(values), each):
        block = np.asarray(values[start : start + each])
        parts = [block] if is_finite(block) else [image for image in block if is_finite(image)]
        for part in parts:
            found = _range(part) if found is None else found | _range(part)
    return found


class Ranges:
    """The value ranges of a source's integers and floats, kept separately; false if empty."""

    def __init__(self, of: Mapping[str, Range] | None = None) -> None:
        self._of: dict[str, Range] = dict(of or {})

    def __bool__(self) -> bool:
        return bool(self._of)

    def __or__(self, other: Ranges) -> Ranges:
        """Return the ranges of the images of both."""
        both = self._of.keys() & other._of.keys()
        return Ranges({**self._of, **other._of, **{kind: self._of[kind] | other._of[kind] for kind in both}})

    def before(self, others: Ranges) -> Ranges:
        """Return these ranges, with those of ``others`` for kinds of numbers that are missing here."""
        return Ranges({**others._of, **self._of})

    def state(self) -> dict[str, list[float]]:
        """Return minimum and maximum of each kind, as JSON values."""
        return {kind: [found.low, found.high] for kind, found in self._of.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Ranges:
        """Restore ranges from `state`. Raises ValueError or TypeError for malformed input."""
        ranges = {
            kind: Range(float(low), float(high), kind == "integers") for kind, (low, high) in state.items()
        }
        if not ranges.keys() <= {"integers", "floats"} or not all(
            np.isfinite(each.low) and np.isfinite(each.high) and each.low <= each.high
            for each in ranges.values()
        ):
            raise ValueError(f"{state} is not a valid state of ranges")
        return cls(ranges)

    def add(self, images: NDArray[Any]) -> Range | None:
        """Include images (image, ...) in the ranges; return their own range."""
        found = range_of(images)
        if found is not None:
            kind = _kind(images)
            self._of[kind] = found | self._of.get(kind, found)
        return found

    def apply(self, image: NDArray[Any]) -> NDArray[np.uint8] | None:
        """Return the grey levels of an image by the range of its kind, or by its own if the kind has none.

        The result is None if a value is infinite or NaN.
        """
        if not is_finite(image):
            return None
        found = self._of.get(_kind(image)) or _range(image)
        return found.levels.apply(image)

    def __str__(self) -> str:
        """Return a sentence; empty if all images have 8 bits."""
        return f"grey levels: {' and '.join(map(str, self._of.values()))}" if self._of else ""


def _range(values: NDArray[Any]) -> Range:
    return Range(float(values.min()), float(values.max()), values.dtype.kind in "iu")


def _kind(values: NDArray[Any]) -> str:
    return "integers" if values.dtype.kind in "iu" else "floats"
