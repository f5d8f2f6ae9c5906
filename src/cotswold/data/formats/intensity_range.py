"""Numbers of more than 8 bits as grey levels: what is black and what is white, decided once for a source.

Knows: types, ranges, bits. Does not know: files, pictures as such.

Judged picture by picture, a dark one would become as bright as a light one; judged by some of the pictures,
the others would be clipped. So the range is that of all, from a pass over all of them.
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
"""Floats of 0..255 reach it, or there would be fewer than 16 grey levels."""


@dataclass(frozen=True)
class Levels:
    """``low`` becomes 0, ``high`` 255, with what lies between in proportion and what lies beyond clipped; or,
    of integers, the lowest ``shift`` bits are left out."""

    low: float
    high: float
    shift: int | None = None

    def applied(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        """The grey levels of numbers, all finite."""
        if self.shift is not None:
            scaled = values >> self.shift
        else:
            from_black = values - self.low if self.low else values
            scaled = np.rint(from_black * (255 / (self.high - self.low or 1)))
        levels: NDArray[np.uint8] = np.clip(scaled, 0, 255).astype(np.uint8)
        return levels


@dataclass(frozen=True)
class Range:
    """The least and the greatest of some numbers, all integers or all floats."""

    low: float
    high: float
    integers: bool

    def __or__(self, other: Range) -> Range:
        return Range(min(self.low, other.low), max(self.high, other.high), self.integers)

    @property
    def levels(self) -> Levels:
        """Integers from 0: as many bits as the greatest takes, 8 to 16, or black and white for 0 and 1.
        Floats: 0..1 or 0..255 where they lie in it; of 0..255 at least up to 16, for what ends a little above
        1 was 0..1 before it was scaled. All others are stretched from the least to the greatest."""
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
        """The range and what is made of it, as a part of a sentence."""
        kind = "integers" if self.integers else "floats"
        levels = self.levels
        taken = f"{levels.low:g}..{levels.high:g}" if levels.shift is None else f"{self._bits} bits"
        return f"{kind} from {self.low:g} to {self.high:g} are taken as {taken}"


def is_deep(values: NDArray[Any]) -> bool:
    """Whether numbers have more than 8 bits, so that they need levels."""
    return values.dtype not in (np.uint8, np.bool_)


def is_finite(values: NDArray[Any]) -> bool:
    """Whether numbers are neither infinite nor NaN; no copy of them is made."""
    return values.dtype.kind in "iu" or bool(np.isfinite(values.min()) and np.isfinite(values.max()))


def range_of(values: NDArray[Any]) -> Range | None:
    """The range of the numbers of pictures (image, ...), a few at a time; pictures that are not finite do not
    count. None where there is no other."""
    each = max(1, _BLOCK_BYTES // max(1, values[0].nbytes)) if len(values) else 1
    found: Range | None = None
    for start in range(0, len(values), each):
        block = np.asarray(values[start : start + each])
        parts = [block] if is_finite(block) else [picture for picture in block if is_finite(picture)]
        for part in parts:
            found = _range(part) if found is None else found | _range(part)
    return found


class Ranges:
    """The ranges of a source's integers and floats, each for itself; false where there are none."""

    def __init__(self, of: Mapping[str, Range] | None = None) -> None:
        self._of: dict[str, Range] = dict(of or {})

    def __bool__(self) -> bool:
        return bool(self._of)

    def __or__(self, other: Ranges) -> Ranges:
        """Those of the pictures of both."""
        both = self._of.keys() & other._of.keys()
        return Ranges({**self._of, **other._of, **{kind: self._of[kind] | other._of[kind] for kind in both}})

    def before(self, others: Ranges) -> Ranges:
        """These, and the others' for kinds of numbers of which there is none here."""
        return Ranges({**others._of, **self._of})

    def state(self) -> dict[str, list[float]]:
        """The least and the greatest of each kind, as JSON keeps them."""
        return {kind: [found.low, found.high] for kind, found in self._of.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Ranges:
        """The inverse of `state`; raises ValueError or TypeError for anything else."""
        ranges = {
            kind: Range(float(low), float(high), kind == "integers") for kind, (low, high) in state.items()
        }
        if not ranges.keys() <= {"integers", "floats"} or not all(
            np.isfinite(each.low) and np.isfinite(each.high) and each.low <= each.high
            for each in ranges.values()
        ):
            raise ValueError(f"{state} are no ranges of numbers")
        return cls(ranges)

    def add(self, pictures: NDArray[Any]) -> Range | None:
        """Count pictures (image, ...) in; their own range."""
        found = range_of(pictures)
        if found is not None:
            kind = _kind(pictures)
            self._of[kind] = found | self._of.get(kind, found)
        return found

    def applied(self, picture: NDArray[Any]) -> NDArray[np.uint8] | None:
        """The grey levels of a picture by the range of all, or by its own where none was counted in; None
        where it is not finite."""
        if not is_finite(picture):
            return None
        found = self._of.get(_kind(picture)) or _range(picture)
        return found.levels.applied(picture)

    def __str__(self) -> str:
        """A sentence; empty where all pictures have 8 bits."""
        return f"grey levels: {' and '.join(map(str, self._of.values()))}" if self._of else ""


def _range(values: NDArray[Any]) -> Range:
    return Range(float(values.min()), float(values.max()), values.dtype.kind in "iu")


def _kind(values: NDArray[Any]) -> str:
    return "integers" if values.dtype.kind in "iu" else "floats"
