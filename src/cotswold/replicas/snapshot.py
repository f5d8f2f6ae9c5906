"""What a run of replicas goes on from, on any number of replicas and servers.

Knows: the ledger, vectors, versions, counters, how they are said as plain values. Does not know: where they
are read from, files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cotswold.batch.runtime.startup import POINT
from cotswold.paramserver.core.dispatcher_settings import Counters
from cotswold.shards.core.sample_ledger import Samples


@dataclass(frozen=True)
class Snapshot:
    """What a run goes on from: what the ledger counts is exactly what the vectors have."""

    ledger: Samples
    vectors: Mapping[str, Tensor]
    """The parameters ``x``, and what the rule keeps."""
    versions: tuple[int, ...]
    """How many updates each shard has had."""
    counters: Counters

    def said(self) -> dict[str, object]:
        """All but the vectors, as plain values."""
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
    def of(cls, said: Mapping[str, Any], samples: int, vectors: Mapping[str, Tensor]) -> Snapshot:
        """From what `said` gave, of an epoch of ``samples``; raises LookupError, TypeError or ValueError for
        anything else."""
        counters = said["counters"]
        rates = tuple((int(version), float(rate)) for version, rate in counters["rates"])
        return cls(
            Samples.restored(samples, said["ledger"]),
            vectors,
            tuple(map(int, said["versions"])),
            Counters(int(counters["session"]), rates),
        )
