"""Status of data servers that a program serves.

Knows: the fields, and sums over servers. Does not know: pools, processes, metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cotswold.dataservice.core.shared_epochs import EpochCounts, StreamTotals
    from cotswold.dataservice.runtime.pool import ServerLine, TrainerLine


@dataclass(frozen=True)
class WorkTotals:
    """Totals of the servers' work, including ended servers."""

    samples: int
    batches: int
    sent_bytes: int
    """Bytes of these batches."""
    seconds: float
    """Seconds in which the servers' threads made them."""
    hits: int
    misses: int

    @classmethod
    def from_reports(cls, lines: Iterable[ServerLine]) -> WorkTotals:
        """Sum the reports of servers."""
        each = [
            (one.supplied, one.batches, one.sent_bytes, one.seconds, one.hits, one.misses) for one in lines
        ]
        return cls(*map(sum, zip((0, 0, 0, 0.0, 0, 0), *each, strict=True)))


@dataclass(frozen=True)
class ServedDataStatus:
    """Status of data servers."""

    trainers: tuple[TrainerLine, ...]
    """Connected trainers; empty if the servers joined another pool, whose head alone knows them."""
    servers: tuple[ServerLine, ...]
    """Running data servers; those of other machines have no ``pid``."""
    made: WorkTotals
    samples_per_second: float
    """Mean over the last seconds."""
    ended: Mapping[str, str]
    """Servers of this machine that ended, with the reasons."""
    replaced: int
    """Number of servers started as replacements."""
    refused: Mapping[str, int]
    """Clients without the token (`strangers`) and malformed messages, by reason."""
    drawn: tuple[EpochCounts, ...]
    """Statistics of each shared epoch."""
    streams: tuple[StreamTotals, ...]
    """Totals over all epochs of each stream."""

    @property
    def samples(self) -> int:
        """Samples made so far, including those of ended servers."""
        return self.made.samples

    @property
    def waiting(self) -> int:
        """Requested batches that no server has started."""
        return sum(each.waiting for each in self.servers)

    @property
    def hit_rate(self) -> float | None:
        """Fraction of samples found in the caches; None before the first request."""
        hits = sum(each.hits for each in self.servers)
        wanted = hits + sum(each.misses for each in self.servers)
        return hits / wanted if wanted else None
