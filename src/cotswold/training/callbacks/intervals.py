"""Intervals of steps.

Knows: counts of steps. Does not know: what happens at the end of an interval.
"""

from __future__ import annotations

from cotswold.errors import UserError


def check_interval(every: int, owner: str) -> int:
    """Return an interval of steps; raises UserError, which names the owner, unless it is at least 1."""
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise UserError(f"every={every!r:.80} of {owner} is not an integer of at least 1")
    return every
