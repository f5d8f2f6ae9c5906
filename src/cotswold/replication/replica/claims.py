"""What a server says of the buckets that it leads: all of it once, then only that it is the same.

Knows: what was said in which beat. Does not know: controllers, leases, groups.
"""

from __future__ import annotations

Leads = tuple[tuple[str, int], ...]


class Claims:
    """Those of one server."""

    def __init__(self) -> None:
        self.number = 0
        """Another whenever what is led is different."""
        self._leads: Leads | None = None
        self._is_known = False
        """Whether who gave the last lease knew them."""
        self._said: dict[int, int] = {}
        """By the number of the beat, that of what was said in it."""

    def say(self, leads: Leads, beat: int) -> Leads | None:
        """What is said of them in a beat; None where only their number is."""
        if leads != self._leads:
            self.number, self._leads, self._is_known = self.number + 1, leads, False
        self._said[beat] = self.number
        self._said.pop(beat - 64, None)
        return None if self._is_known else leads

    def leased(self, beat: int, seconds: float) -> None:
        """The lease for which a beat asked was given; for no seconds where more is to be said first."""
        self._is_known = seconds > 0 and self._said.get(beat) == self.number
