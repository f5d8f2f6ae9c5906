"""Progress of a host's drain.

Knows: the controllers' replies about each server. Does not know: who requests the drain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cotswold.wire import (
    DrainStatus,
)


@dataclass(frozen=True)
class DrainProgress:
    """Progress of other servers in taking over the replicas of a host."""

    remaining: int
    """Number of replicas left."""
    unknown: tuple[str, ...] = ()
    """Servers about which no controller has replied."""

    @classmethod
    def of(cls, replies: Mapping[str, DrainStatus | None]) -> DrainProgress:
        """Return the progress from the last reply about each server."""
        unknown = tuple(name for name, said in replies.items() if said is None)
        return cls(sum(said.left for said in replies.values() if said is not None), unknown)

    @property
    def is_incomplete(self) -> bool:
        """True if replicas are left, or may be."""
        return self.remaining > 0 or bool(self.unknown)
