"""Buckets that servers claim to lead, and which of these claims are stale.

Knows: the last claims of each server, by a number that changes with them. Does not know: leases.

    heartbeat of a server         known claims                      action
    with all claims               any                               store and check them
    with a number only            of that number                    nothing to check
    with a number only            of another number, or none        request all claims

A claim is checked again when its group changes. So the cost of a heartbeat does not depend on the number of
claims.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from cotswold.replication.controller.cluster_view import ClusterView
from cotswold.wire import Heartbeat


@dataclass
class _ServerClaims:
    number: int
    terms: dict[str, int]
    stale: dict[str, None] = field(default_factory=dict)


class PrimaryClaims:
    """Claims of primaries that a leader knows."""

    def __init__(self, board: ClusterView) -> None:
        self._board = board
        self._of: dict[str, _ServerClaims] = {}

    def heard(self, here: Heartbeat) -> Collection[str] | None:
        """Return the stale claims of a server; None if it must first send all claims."""
        known = self._of.get(here.server)
        if here.leads is None:
            return None if known is None or known.number != here.claims else known.stale
        known = self._of[here.server] = _ServerClaims(here.claims, dict(here.leads))
        for bucket in known.terms:
            self._look(here.server, known, bucket)
        return known.stale

    def changed(self, bucket: str, servers: Collection[str]) -> None:
        """Check the claims of a changed or deleted bucket; ``servers``: its primaries before and after."""
        for server in servers:
            known = self._of.get(server)
            if known is not None and bucket in known.terms:
                self._look(server, known, bucket)

    def forget(self, server: str) -> None:
        """Forget a server that exited for good or sends all claims again."""
        self._of.pop(server, None)

    def _look(self, server: str, known: _ServerClaims, bucket: str) -> None:
        if self.may_lead(server, bucket, known.terms[bucket]):
            known.stale.pop(bucket, None)
        else:
            known.stale[bucket] = None

    def may_lead(self, server: str, bucket: str, term: int) -> bool:
        """True if the claim is valid; a bucket without a group has no other primary, now or later."""
        group = self._board.groups.get(bucket)
        return group is None or (group.primary == server and term <= group.term)
