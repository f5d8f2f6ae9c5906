"""Preparation of vectors for a network.

Knows: the settings (`VectorPreparation`), the moments of a training split, and the resulting function
(`VectorTransform`). Does not know: sources, stores.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cotswold.data.preprocessing.table_schema import TableSchema
from cotswold.errors import UserError
from cotswold.files import MalformedError
from cotswold.geometry import MapShape
from cotswold.phrases import counted

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

_MAX_NAMED_FEATURES = 10
"""Maximum number of constant features named in a message."""


@dataclass(frozen=True)
class VectorPreparation:
    """Settings of the preparation of vectors, frames and tables, as in `[data]` of a recipe.

    Args:
        features: Numbers in a vector or frame.
        kind: "vectors", "frames" or "table".
        context: Frames on each side that are joined with a frame to make one sample.
        standardise: Subtract each feature's mean and divide by its deviation, both of the training split.
        dtype: Type of stored values, "float32" or "float16".
        table: The columns of a table; None for other kinds.
        rate: Samples per second of the recordings that frames were made of; None for other data.

    Raises:
        UserError: if a value is out of range.
    """

    features: int
    """Numbers in a vector or frame."""
    kind: Literal["vectors", "frames", "table"] = "vectors"
    context: int = 0
    """Frames on each side that are joined with a frame to make one sample."""
    standardise: bool = True
    """Subtract each feature's mean and divide by its deviation, both of the training split."""
    dtype: Literal["float32", "float16"] = "float32"
    table: TableSchema | None = None
    """The columns of a table; None for other kinds."""
    rate: int | None = None
    """Samples per second of the recordings that frames were made of; None for other data."""

    def __post_init__(self) -> None:
        if self.features < 1:
            raise UserError(f"features must be at least 1, got {self.features}")
        if self.kind not in ("vectors", "frames", "table"):
            raise UserError(f"kind must be 'vectors', 'frames' or 'table', got {self.kind!r}")
        if (self.kind == "table") != (self.table is not None):
            raise UserError("kind 'table' needs the columns of a table, and other kinds have none")
        if self.dtype not in ("float32", "float16"):
            raise UserError(f"dtype must be 'float32' or 'float16', got {self.dtype!r}")
        if self.context < 0 or (
            self.context
            and (self.kind == "vectors" or (self.table is not None and self.table.sequence is None))
        ):
            raise UserError(
                f"context = {self.context} is not valid: it must be at least 0, and 0 unless the samples are "
                "frames or rows of sequences"
            )

    @property
    def shape(self) -> MapShape:
        """Shape of a sample: its numbers are channels, frame after frame."""
        return MapShape((2 * self.context + 1) * self.features, 1, 1)

    @property
    def row(self) -> MapShape:
        """Shape of a stored row: a vector, or one frame."""
        return MapShape(self.features, 1, 1)

    @property
    def needs_sample(self) -> bool:
        """True if parameters must be estimated from training samples."""
        return self.standardise or self.table is not None

    def state(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        found = asdict(self)
        del found["table"], found["rate"]
        if self.rate is not None:
            found["rate"] = self.rate
        return found if self.table is None else {**found, "table": self.table.state()}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> VectorPreparation:
        """Restore a preparation.

        Args:
            state: A value of `state`.
        """
        table = state.get("table")
        return cls(**{**state, "table": None if table is None else TableSchema.from_state(table)})


@dataclass(frozen=True)
class Moments:
    """Number of rows, and mean, sum of squared deviations, minimum and maximum of each feature."""

    count: int
    mean: Float64
    squares: Float64
    low: Float64
    high: Float64

    @classmethod
    def of(cls, rows: Float64) -> Moments:
        """Compute the moments of at least one row, in two passes."""
        mean = rows.mean(0)
        return cls(len(rows), mean, np.square(rows - mean).sum(0), rows.min(0), rows.max(0))

    def __or__(self, other: Moments) -> Moments:
        """Merge two sets of moments (Chan, Golub and LeVeque 1979), without differences of large sums."""
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
        """True for each feature whose mean and deviation are within the range of float64."""
        found: NDArray[np.bool_] = (
            np.isfinite(self.mean)
            & np.isfinite(self.squares)
            & ((self.squares > 0) | (self.low == self.high))
        )
        return found

    @property
    def deviation(self) -> Float64:
        """The standard deviation of each feature; exactly 0 for a constant one."""
        found: Float64 = np.where(self.low == self.high, 0.0, np.sqrt(self.squares / self.count))
        return found


@dataclass(frozen=True, eq=False)
class VectorTransform:
    """A preparation with the mean and deviation (feature,) of the training split, if it standardises.

    A constant feature has a deviation of 0 and is not divided.

    Args:
        preparation: The settings.
        mean: float64 (feature,), or None without standardisation.
        deviation: float64 (feature,), or None without standardisation.
        fill: Values that replace missing ones, float64 (feature,); None if there are no missing values.
    """

    preparation: VectorPreparation
    mean: Float64 | None = None
    deviation: Float64 | None = None
    fill: Float64 | None = None

    def values(self, rows: NDArray[Any]) -> Float32:
        """Transform rows to what a network reads.

        Args:
            rows: Vectors or single frames of any dtype, (row, feature). Samples with context are joined from
                several rows afterwards.

        Returns:
            float32 (row, channel, 1, 1).

        Raises:
            UserError: if the number of features is wrong.
        """
        if rows.ndim != 2 or rows.shape[1] != self.preparation.features:
            raise UserError(
                f"rows have shape {rows.shape}, but the transform needs (row, {self.preparation.features})"
            )
        if self.fill is not None:
            rows = np.where(np.isnan(rows), self.fill, rows)
        if self.mean is not None:
            rows = (rows - self.mean) / self._divisor
        with np.errstate(over="ignore"):
            single: Float32 = rows.astype(np.float32)
        return single[:, :, None, None]

    def stored(self, values: Float32) -> NDArray[Any]:
        """Convert values to the store's dtype; values out of its range become infinite.

        Args:
            values: float32, from `values`.
        """
        with np.errstate(over="ignore"):
            return values.astype(self.preparation.dtype)

    def restored(self, stored: NDArray[Any]) -> Float32:
        """Convert stored numbers to values: the inverse of `stored`, up to rounding.

        Args:
            stored: Numbers of the store's dtype, of any shape.

        Returns:
            float32 of the same shape.
        """
        return stored.astype(np.float32)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for users."""
        if self.deviation is None:
            return ()
        constant = np.flatnonzero(self.deviation == 0).tolist()
        if not constant:
            return ()
        is_or_are, it = ("is", "it is") if len(constant) == 1 else ("are", "they are")
        table = self.preparation.table
        names = constant if table is None else [table.feature_names[each] for each in constant]
        named = ", ".join(map(str, names[:_MAX_NAMED_FEATURES])) + (
            ", ..." if len(constant) > _MAX_NAMED_FEATURES else ""
        )
        return (
            f"{len(constant):,} of {counted(self.preparation.features, 'feature')} {is_or_are} constant in "
            f"the training split, so {it} 0 there and not divided: {named}",
        )

    def state(self) -> dict[str, Any]:
        """Return the complete state as JSON values, without loss; checkpoints and runs contain it."""
        return {
            "preparation": self.preparation.state(),
            "mean": None if self.mean is None else self.mean.tolist(),
            "deviation": None if self.deviation is None else self.deviation.tolist(),
            **({} if self.fill is None else {"fill": self.fill.tolist()}),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> VectorTransform:
        """Restore a transform.

        Args:
            state: A value of `state`.

        Raises:
            MalformedError: for anything else.
        """
        try:
            preparation = VectorPreparation.from_state(state["preparation"])
            mean, deviation, fill = (
                None if each is None else np.array(each, np.float64)
                for each in (state["mean"], state["deviation"], state.get("fill"))
            )
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, UserError) as error:
            raise MalformedError(f"does not describe a transform ({error})") from error
        if preparation.standardise != (mean is not None) or (mean is None) != (deviation is None):
            raise MalformedError(
                "does not describe a transform (mean and deviation contradict the preparation)"
            )
        for each in (mean, deviation, fill):
            if each is not None and (each.shape != (preparation.features,) or not np.isfinite(each).all()):
                raise MalformedError(
                    "does not describe a transform (each statistic needs one number per feature)"
                )
        return cls(preparation, mean, deviation, fill)

    @cached_property
    def _divisor(self) -> Float64:
        assert self.deviation is not None
        divisor: Float64 = np.where(self.deviation > 0, self.deviation, 1.0)
        return divisor


def standardising(preparation: VectorPreparation, moments: Moments) -> VectorTransform:
    """Return the transform of a training split.

    A constant feature becomes exactly 0, regardless of the rounding of its mean.
    """
    constant = moments.low == moments.high
    return VectorTransform(preparation, np.where(constant, moments.low, moments.mean), moments.deviation)
