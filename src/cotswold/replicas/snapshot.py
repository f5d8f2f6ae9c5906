"""State from which a run of replicas continues, on any number of replicas and servers.

Knows: the ledger, vectors, versions, counters, their form as plain values. Does not know: the origin of the
values, files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cotswold.batch.runtime.startup import POINT
from cotswold.paramserver.core.settings import DispatcherCounters
from cotswold.shards.core.sample_ledger import SampleLedger


@dataclass(frozen=True)
class ParameterSnapshot:
    """State of a run: the ledger counts exactly the samples that are in the vectors."""

    ledger: SampleLedger
    vectors: Mapping[str, Tensor]
    """The parameters ``x``, and the state of the update rule."""
    versions: tuple[int, ...]
    """Number of updates of each shard."""
    counters: DispatcherCounters

    def to_json(self) -> dict[str, object]:
        """All fields but the vectors, as plain values."""
        return {
            "ledger": self.ledger.state(),
            "vectors": [name for name in self.vectors if name != POINT],
            "versions": list(self.versions),
            "counters": {
                "session": self.counters.session,
                "rates": [list(each) for each in self.counters.rates],
            },
        }

    @classmethod
    def of(cls, said: Mapping[str, Any], samples: int, vectors: Mapping[str, Tensor]) -> ParameterSnapshot:
        """Restore the value of `to_json`, for ``samples`` per epoch; raise LookupError, TypeError or
        ValueError for invalid input."""
        counters = said["counters"]
        rates = tuple((int(version), float(rate)) for version, rate in counters["rates"])
        return cls(
            SampleLedger.restored(samples, said["ledger"]),
            vectors,
            tuple(map(int, said["versions"])),
            DispatcherCounters(int(counters["session"]), rates),
        )
