"""Of which buckets servers say that they act as the primary, and which of these are another's.

Knows: what each has said last, by a number that is another whenever that is different. Does not know: leases.

    a server's beat               what is known                     what follows
    it says what it leads         whatever                          that is known, and looked at
    it says only the number       of that number                    nothing is looked at
    it says only the number       of another, or nothing            it is asked to say all

What is known is looked at again where a group is another one: so a beat costs the same, whatever is led.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from cotswold.replication.controller.cluster_view import Board
from cotswold.wire import Here


@dataclass
class _Claims:
    number: int
    terms: dict[str, int]
    stale: dict[str, None] = field(default_factory=dict)


class Claims:
    """Those that a leader knows."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._of: dict[str, _Claims] = {}

    def heard(self, here: Here) -> Collection[str] | None:
        """Buckets that a server leads and may not; None where it must say first what it leads."""
        known = self._of.get(here.server)
        if here.leads is None:
            return None if known is None or known.number != here.claims else known.stale
        known = self._of[here.server] = _Claims(here.claims, dict(here.leads))
        for bucket in known.terms:
            self._look(here.server, known, bucket)
        return known.stale

    def changed(self, bucket: str, servers: Collection[str]) -> None:
        """A bucket has another group, or none; ``servers``: its primaries before and after."""
        for server in servers:
            known = self._of.get(server)
            if known is not None and bucket in known.terms:
                self._look(server, known, bucket)

    def forget(self, server: str) -> None:
        """It does not come back, or says anew what it leads."""
        self._of.pop(server, None)

    def _look(self, server: str, known: _Claims, bucket: str) -> None:
        if self.may_lead(server, bucket, known.terms[bucket]):
            known.stale.pop(bucket, None)
        else:
            known.stale[bucket] = None

    def may_lead(self, server: str, bucket: str, term: int) -> bool:
        """A bucket that is not there is nobody else's, and never will be."""
        group = self._board.groups.get(bucket)
        return group is None or (group.primary == server and term <= group.term)
