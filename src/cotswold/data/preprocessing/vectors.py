"""Preparation of vectors: what is done to a row of numbers before a network sees it.

Knows: the choices (`VectorPreparation`), the moments of a training split, and the function that they give
(`VectorTransform`). Does not know: sources, stores.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cotswold.errors import UserError
from cotswold.files import MalformedError
from cotswold.geometry import MapShape
from cotswold.words import counted

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

_NAMED = 10
"""Constant features that are named in a sentence, at most."""


@dataclass(frozen=True)
class VectorPreparation:
    """Choices; the fields mean what `[data]` of a recipe says for vectors and frames."""

    features: int
    """Numbers in a vector or in one frame."""
    kind: Literal["vectors", "frames"] = "vectors"
    context: int = 0
    """Frames on each side that make one sample with the frame between them."""
    standardise: bool = True
    """Subtract each feature's mean and divide by its deviation, both of the training split."""
    dtype: Literal["float32", "float16"] = "float32"

    def __post_init__(self) -> None:
        if self.features < 1:
            raise UserError(f"vectors of {self.features} features hold nothing; give 1 or more")
        if self.kind not in ("vectors", "frames"):
            raise UserError(f"{self.kind!r} is neither 'vectors' nor 'frames'")
        if self.dtype not in ("float32", "float16"):
            raise UserError(f"{self.dtype!r} is neither 'float32' nor 'float16'")
        if self.context < 0 or (self.context and self.kind == "vectors"):
            raise UserError(
                f"context = {self.context}: it is a number of frames on each side, 0 or more, for "
                "sequences of "
                "frames"
            )

    @property
    def shape(self) -> MapShape:
        """The map of one sample: its numbers are channels, frame after frame."""
        return MapShape((2 * self.context + 1) * self.features, 1, 1)

    @property
    def row(self) -> MapShape:
        """The map of what the store keeps once: a vector, or one frame."""
        return MapShape(self.features, 1, 1)

    @property
    def needs_sample(self) -> bool:
        """Whether something has to be estimated from training samples."""
        return self.standardise

    def state(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> VectorPreparation:
        """The inverse of `state`."""
        return cls(**state)


@dataclass(frozen=True)
class Moments:
    """Of some rows: how many, and for each feature the mean, the sum of squared distances from it, the least
    and the greatest."""

    count: int
    mean: Float64
    squares: Float64
    low: Float64
    high: Float64

    @classmethod
    def of(cls, rows: Float64) -> Moments:
        """Of at least one row, in two passes."""
        mean = rows.mean(0)
        return cls(len(rows), mean, np.square(rows - mean).sum(0), rows.min(0), rows.max(0))

    def __or__(self, other: Moments) -> Moments:
        """Of both (Chan, Golub and LeVeque 1979: no difference of large sums)."""
        count, apart = self.count + other.count, other.mean - self.mean
        return Moments(
            count,
            self.mean + apart * (other.count / count),
            self.squares + other.squares + apart**2 * (self.count * other.count / count),
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )

    @property
    def is_exact(self) -> NDArray[np.bool_]:
        """Whether the mean and deviation of each feature are neither too large nor too small for float64."""
        found: NDArray[np.bool_] = (
            np.isfinite(self.mean)
            & np.isfinite(self.squares)
            & ((self.squares > 0) | (self.low == self.high))
        )
        return found

    @property
    def deviation(self) -> Float64:
        """The standard deviation of each feature; 0 exactly where it is constant."""
        found: Float64 = np.where(self.low == self.high, 0.0, np.sqrt(self.squares / self.count))
        return found


@dataclass(frozen=True, eq=False)
class VectorTransform:
    """A preparation with the mean and deviation of the training split, (feature,), where it standardises.

    A feature that is constant there has a deviation of 0; it is not divided by.
    """

    preparation: VectorPreparation
    mean: Float64 | None = None
    deviation: Float64 | None = None

    def values(self, rows: NDArray[Any]) -> Float32:
        """What the network reads, from any numbers (row, feature): float32 (row, channel, 1, 1).

        Rows are vectors or single frames; a sample with context is joined of several.
        """
        if rows.ndim != 2 or rows.shape[1] != self.preparation.features:
            raise UserError(
                f"rows of shape {rows.shape} are not the (row, {self.preparation.features}) that the network "
                "learnt from"
            )
        if self.mean is not None:
            rows = (rows - self.mean) / self._divisor
        with np.errstate(over="ignore"):
            single: Float32 = rows.astype(np.float32)
        return single[:, :, None, None]

    def stored(self, values: Float32) -> NDArray[Any]:
        """Values as the store keeps them; what its dtype cannot hold becomes infinite."""
        with np.errstate(over="ignore"):
            return values.astype(self.preparation.dtype)

    def restored(self, stored: NDArray[Any]) -> Float32:
        """The inverse of `stored`, up to rounding."""
        return stored.astype(np.float32)

    @property
    def notes(self) -> tuple[str, ...]:
        """What people should know, a sentence each."""
        if self.deviation is None:
            return ()
        constant = np.flatnonzero(self.deviation == 0).tolist()
        if not constant:
            return ()
        is_or_are, it = ("is", "it is") if len(constant) == 1 else ("are", "they are")
        named = ", ".join(map(str, constant[:_NAMED])) + (", ..." if len(constant) > _NAMED else "")
        return (
            f"{len(constant):,} of {counted(self.preparation.features, 'feature')} {is_or_are} constant in "
            f"the training split, so {it} 0 there and not divided: {named}",
        )

    def state(self) -> dict[str, Any]:
        """Everything, as JSON can keep it without loss; a checkpoint or a run can carry it."""
        return {
            "preparation": self.preparation.state(),
            "mean": None if self.mean is None else self.mean.tolist(),
            "deviation": None if self.deviation is None else self.deviation.tolist(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> VectorTransform:
        """The inverse of `state`; raises MalformedError for anything else."""
        try:
            preparation = VectorPreparation.from_state(state["preparation"])
            mean, deviation = (
                None if state[name] is None else np.array(state[name], np.float64)
                for name in ("mean", "deviation")
            )
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, UserError) as error:
            raise MalformedError(f"describes no transform ({error})") from error
        if preparation.standardise != (mean is not None) or (mean is None) != (deviation is None):
            raise MalformedError("describes no transform (its mean and deviation contradict its preparation)")
        for each in (mean, deviation):
            if each is not None and (each.shape != (preparation.features,) or not np.isfinite(each).all()):
                raise MalformedError(
                    "describes no transform (a mean or deviation is not one number a feature)"
                )
        return cls(preparation, mean, deviation)

    @cached_property
    def _divisor(self) -> Float64:
        assert self.deviation is not None
        divisor: Float64 = np.where(self.deviation > 0, self.deviation, 1.0)
        return divisor


def standardising(preparation: VectorPreparation, moments: Moments) -> VectorTransform:
    """The transform of a training split; a constant feature becomes 0 exactly, whatever its mean was rounded
    to."""
    constant = moments.low == moments.high
    return VectorTransform(preparation, np.where(constant, moments.low, moments.mean), moments.deviation)
