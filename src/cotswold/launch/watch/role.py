"""The number of a rank, and the time limits of its heartbeat.

Knows: ranks as numbers, seconds. Does not know: stores, threads, the time.
"""

from __future__ import annotations

from dataclasses import dataclass

_PUBLISH_BEATS = 4
"""Number of beats within which all live ranks have read an abort reason."""
_SUSPICION_BEATS = 4
"""Number of beats that a rank may miss once a connection has broken."""


@dataclass(frozen=True)
class Role:
    """One rank of ``size`` and its limits.

    ``store_rank`` is the rank whose process hosts the store, None if no rank does; then sentences call the
    store ``store_name``. A rank may be silent for ``timeout_seconds``, and idle for ``stall_seconds`` while
    others wait for it.
    """

    rank: int
    size: int
    store_rank: int | None
    timeout_seconds: float
    stall_seconds: float
    store_name: str = "the launcher's store"

    @property
    def hosts_store(self) -> bool:
        """True if this rank's process hosts the store."""
        return self.rank == self.store_rank

    @property
    def interval_seconds(self) -> float:
        """Seconds from one beat to the next."""
        return min(1.0, self.timeout_seconds / 5)

    @property
    def suspicious_timeout_seconds(self) -> float:
        """Seconds that a rank may be silent once a connection has broken, when some process must be lost."""
        return _SUSPICION_BEATS * self.interval_seconds

    @property
    def suspicion_seconds(self) -> float:
        """Seconds that a rank whose connection broke waits for the detection of the dead rank."""
        return self.suspicious_timeout_seconds + self.publish_seconds + 2 * self.interval_seconds

    @property
    def publish_seconds(self) -> float:
        """Seconds for which a rank tries to publish why all must stop."""
        return _PUBLISH_BEATS * self.interval_seconds

    @property
    def leave_timeout_seconds(self) -> float:
        """Maximum seconds from a rank's announcement of its end until it leaves.

        The host of the store waits for the others.
        """
        return self.timeout_seconds if self.hosts_store else 2 * self.interval_seconds
