"""A row of a result: one operation in all implementations, its bars, and if it meets them.

Knows: rates, ratios taken round by round, bars. Does not know: the operations, time, tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cotswold.bench.measure import Document, Spread, rates, ratios, rounded_all

COTSWOLD = "cotswold"
GIGA = 1e9
Samples = Mapping[str, Sequence[float]]
Sense = Literal["at least", "at most"]


@dataclass(frozen=True)
class RowKey:
    """Identity of a row: its group, shape and operation; ``images`` is 0 without a batch."""

    group: str
    shape: str
    operation: str
    images: int = 0


@dataclass(frozen=True)
class Comparison:
    """A ratio of ours to a reference, and the bar for its median; None for information only."""

    against: str
    ratio: Spread
    bar: float | None = None
    sense: Sense = "at least"

    @property
    def meets_bar(self) -> bool | None:
        """True if the median of the ratio meets the bar; None without a bar."""
        if self.bar is None:
            return None
        median = self.ratio.median
        return median >= self.bar if self.sense == "at least" else median <= self.bar

    def as_dict(self) -> Document:
        """The comparison as JSON."""
        return {
            "against": self.against,
            "ratio": self.ratio.as_dict(),
            "sense": self.sense,
            "bar": self.bar,
            "met": self.meets_bar,
        }


@dataclass(frozen=True)
class Row:
    """Figures of ours and of every baseline in a unit, their samples, verdicts, and an optional remark."""

    key: RowKey
    unit: str
    figures: Mapping[str, Spread]
    samples: Samples
    sampled: str
    verdicts: Sequence[Comparison] = ()
    note: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)

    def as_dict(self) -> Document:
        """The row as JSON."""
        return {
            "group": self.key.group,
            "shape": self.key.shape,
            "images": self.key.images,
            "operation": self.key.operation,
            "unit": self.unit,
            "figures": {by: spread.as_dict() for by, spread in self.figures.items()},
            "verdicts": [verdict.as_dict() for verdict in self.verdicts],
            "note": self.note,
            "facts": dict(self.facts),
            self.sampled: {by: rounded_all(taken) for by, taken in self.samples.items()},
        }


@dataclass(frozen=True)
class Ceiling:
    """An upper bound of an operation: its name, its work and its seconds in each round."""

    name: str
    work: float
    seconds: Sequence[float]

    def compare(self, work: float, seconds: Sequence[float], bar: float | None) -> Comparison:
        """The fraction of the bound's rate, round by round."""
        ours, most = [work / one for one in seconds], [self.work / one for one in self.seconds]
        return Comparison(self.name, ratios(ours, most), bar)


def timed(
    place: RowKey,
    work: float,
    samples: Samples,
    verdicts: Sequence[Comparison],
    unit: Literal["GFLOP/s", "GB/s"] = "GFLOP/s",
    note: str = "",
) -> Row:
    """A row of rates: ``work`` FLOPs or bytes in the seconds of ours and of every baseline."""
    figures = {by: giga(rates(work, taken)) for by, taken in samples.items()}
    return Row(place, unit, figures, samples, "seconds", verdicts, note, {"work": work})


def giga(spread: Spread) -> Spread:
    """The spread in units of 10⁹."""
    return Spread(*(value / GIGA for value in vars(spread).values()))


def compare_with_best_baseline(samples: Samples, bar: float | None) -> list[Comparison]:
    """Speed-up of ours over the fastest baseline; empty without baselines."""
    baselines = [by for by in samples if by != COTSWOLD]
    if not baselines:
        return []
    best = min(baselines, key=lambda by: Spread.from_samples(samples[by]).median)
    return [Comparison(best, ratios(samples[best], samples[COTSWOLD]), bar)]
