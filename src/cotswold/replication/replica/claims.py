"""A server's claims to lead buckets: sent in full once, then by number until they change.

Knows: the claims sent in each heartbeat. Does not know: controllers, leases, groups.
"""

from __future__ import annotations

Leads = tuple[tuple[str, int], ...]


class ClaimsSender:
    """Claims of one server."""

    def __init__(self) -> None:
        self.number = 0
        """Number that changes whenever the claims do."""
        self._leads: Leads | None = None
        self._is_acknowledged = False
        """True if the controller that granted the last lease knew the claims."""
        self._sent: dict[int, int] = {}
        """Number of the claims sent in each heartbeat."""

    def claims_to_send(self, leads: Leads, beat: int) -> Leads | None:
        """Return the claims to send in a heartbeat; None if their number suffices."""
        if leads != self._leads:
            self.number, self._leads, self._is_acknowledged = self.number + 1, leads, False
        self._sent[beat] = self.number
        self._sent.pop(beat - 64, None)
        return None if self._is_acknowledged else leads

    def leased(self, beat: int, seconds: float) -> None:
        """Record the lease granted for a heartbeat; zero seconds request all claims."""
        self._is_acknowledged = seconds > 0 and self._sent.get(beat) == self.number
