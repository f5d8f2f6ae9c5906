"""Which rank a process is, as its heartbeat sees it, and the limits that follow.

Knows: ranks as numbers, seconds. Does not know: stores, threads, the time.
"""

from __future__ import annotations

from dataclasses import dataclass

_TELLING_BEATS = 4
"""Beats within which all who live have read a verdict."""
_SUSPICION_BEATS = 4
"""Beats that a rank may miss once a connection has broken."""


@dataclass(frozen=True)
class Role:
    """Which rank of how many, and its limits.

    ``keeper`` is the rank whose process keeps the store, None if no rank does; then sentences call it
    ``store_name``. A rank may be silent for ``timeout_seconds``, and do nothing for ``stall_seconds`` while
    others wait for it.
    """

    rank: int
    size: int
    keeper: int | None
    timeout_seconds: float
    stall_seconds: float
    store_name: str = "the launcher's store"

    @property
    def keeps(self) -> bool:
        """Whether this rank's process keeps the store."""
        return self.rank == self.keeper

    @property
    def interval_seconds(self) -> float:
        """From one beat to the next."""
        return min(1.0, self.timeout_seconds / 5)

    @property
    def suspicious_timeout_seconds(self) -> float:
        """How long a rank may be silent once a connection has broken: then some process is surely gone."""
        return _SUSPICION_BEATS * self.interval_seconds

    @property
    def suspicion_seconds(self) -> float:
        """How long a rank whose connection broke waits for the dead one to be found."""
        return self.suspicious_timeout_seconds + self.telling_seconds + 2 * self.interval_seconds

    @property
    def telling_seconds(self) -> float:
        """How long a rank tries to tell the others why all must stop."""
        return _TELLING_BEATS * self.interval_seconds

    @property
    def leaving_seconds(self) -> float:
        """How long a rank that has said that it is gone tries to: the keeper waits for the others."""
        return self.timeout_seconds if self.keeps else 2 * self.interval_seconds
