"""The ledger of samples that clients bring themselves: no samples are handed out, pushed ones are counted.

Knows: sessions, the number of samples of each update, the samples that each server has applied. Does not
know: the samples themselves, whether a client used one twice, messages, time.

Each session counts its samples on its own line from 0. Samples that a client computes and never pushes are
unknown to this ledger. So no sample is open, and none can be lost:

    pushed samples                                           result
    every server has applied them                            counted
    some servers have, all others refused them               torn
    every server refused them                                refused
    the session ended, and some servers have them            torn
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from cotswold.shards.core.sample_ledger import SampleCounts, SampleLedger, SampleReport
from cotswold.wire import Ranges
from cotswold.wire.ranges import difference, intersection, size, union

ANY = 1 << 60
"""Number of samples assumed for clients that bring their own; larger than any real number."""


class ClientLedger(SampleLedger):
    """Samples of client sessions, as reported by servers."""

    def __init__(self, before: SampleCounts | None = None) -> None:
        """``before``: counts of a resumed run."""
        super().__init__(ANY)
        self._earlier = before or SampleCounts()
        self._live: dict[int, SampleCounts] = {}

    def state(self) -> dict[str, object]:
        """Return the counts as plain values."""
        return dict(vars(self.total))

    @property
    def total(self) -> SampleCounts:
        """Counts of all sessions."""
        return _sum(self._earlier, *self._live.values())

    @property
    def sessions(self) -> tuple[int, ...]:
        """Live sessions that servers have reported."""
        return tuple(sorted(self._live))

    def of(self, session: int) -> SampleCounts:
        """Return the counts of a live session."""
        return self._live.get(session, SampleCounts())

    @property
    def settled(self) -> Ranges:
        """Always empty: each session has its own line, so positions cannot be settled globally."""
        return ()

    def can_end_epoch(self, fraction: float, of: str, sessions: Sequence[int]) -> bool:
        """Always False: the serving process decides when it ends."""
        return False

    def assign(self, session: int, max_samples: int, *, only_divided: bool = False) -> tuple[int, int] | None:
        """Always None: clients bring their own samples."""
        return None

    def record_report(self, session: int, servers: Sequence[SampleReport]) -> None:
        """Record each server's report on a session's samples."""
        self._live[session] = _account(servers, is_ended=False)

    def end_session(self, session: int, servers: Sequence[SampleReport], freed: Ranges = ()) -> Ranges:
        """Record the last report of all servers on a session that ended."""
        self._live.pop(session, None)
        self._earlier = _sum(self._earlier, _account(servers, is_ended=True))
        return ()


def _sum(*accounts: SampleCounts) -> SampleCounts:
    return SampleCounts(**{name: sum(vars(each)[name] for each in accounts) for name in vars(accounts[0])})


def _account(servers: Sequence[SampleReport], *, is_ended: bool) -> SampleCounts:
    counted: Ranges = reduce(intersection, (applied for applied, _ in servers))
    somewhere = difference(union(*(applied for applied, _ in servers)), counted)
    known: Ranges = reduce(intersection, (union(*each) for each in servers))
    torn = somewhere if is_ended else intersection(somewhere, known)
    refused = difference(difference(known, counted), somewhere)
    sizes = {"counted": size(counted), "torn": size(torn), "refused": size(refused)}
    return SampleCounts(handed_out=sum(sizes.values()), **sizes)
