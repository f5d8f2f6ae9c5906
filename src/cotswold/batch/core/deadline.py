"""Deadline of an evaluation: the portions that it no longer waits for.

Knows: the ledger, speeds. Does not know: messages, states.
"""

from __future__ import annotations

from cotswold.batch.core.chunk_ledger import Ledger
from cotswold.batch.core.settings import Rules
from cotswold.shards.core.membership import Members


def left_at_deadline(ledger: Ledger, members: Members, rules: Rules, seconds: float) -> list[int]:
    """Return the portions to leave out after the deadline: not computed, and not part of a worker's sum.
    Empty before it."""
    if rules.deadline is None or not any(member.seconds for member in members):
        return []
    usual = len(ledger.portions) / max(members.rate, 1e-9)
    if seconds < rules.deadline * usual or ledger.computed < rules.least * len(ledger.portions):
        return []
    # wait for portions that a worker may be adding to a sum with others: the whole sum would be refused
    return [
        portion
        for portion in sorted(ledger.open)
        if not ledger.is_in_sum(portion) and all(claim.apart for claim in ledger.claims(portion))
    ]
