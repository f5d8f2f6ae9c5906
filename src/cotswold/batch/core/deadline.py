"""When an evaluation need not wait any longer, and for which portions.

Knows: the ledger, speeds. Does not know: messages, states.
"""

from __future__ import annotations

from cotswold.batch.core.chunk_ledger import Ledger
from cotswold.batch.core.settings import Rules
from cotswold.shards.core.membership import Members


def left_at_deadline(ledger: Ledger, members: Members, rules: Rules, seconds: float) -> list[int]:
    """What nobody has computed and no worker's sum hangs on, once the deadline is over; else nothing."""
    if rules.deadline is None or not any(member.seconds for member in members):
        return []
    usual = len(ledger.portions) / max(members.rate, 1e-9)
    if seconds < rules.deadline * usual or ledger.computed < rules.least * len(ledger.portions):
        return []
    # what a worker may be adding to a sum of others is waited for: the sum would be refused with it
    return [
        portion
        for portion in sorted(ledger.open)
        if not ledger.is_in_sum(portion) and all(claim.apart for claim in ledger.claims(portion))
    ]
