"""The ledger of samples that clients bring themselves: nothing is dealt, only what came is counted.

Knows: sessions, from how many samples each update said that it was computed, what each server says is
applied. Does not know: which samples these were, whether a client had one twice, messages, time.

Each session counts its samples along a line of its own, from 0. What a client computes and never pushes is
not known here; so nothing is open, and nothing can be lost:

    what was pushed                                          it is
    every server has applied it                              counted
    some servers have, all others refused it                 torn
    every server refused it                                  refused
    its session ended, and some servers have it              torn
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from cotswold.shards.core.sample_ledger import Account, Said, Samples
from cotswold.wire import Ranges
from cotswold.wire.ranges import common, joined, size, without

ANY = 1 << 60
"""How many samples both sides say that there are, where clients bring their own: more than anybody has."""


class Brought(Samples):
    """The samples of sessions, as servers tell of them."""

    def __init__(self, before: Account | None = None) -> None:
        """``before``: what is known of a run that goes on."""
        super().__init__(ANY)
        self._before = before or Account()
        self._living: dict[int, Account] = {}

    def state(self) -> dict[str, object]:
        """What is known by now, as plain values."""
        return dict(vars(self.total))

    @property
    def total(self) -> Account:
        """Of all sessions."""
        return _sum(self._before, *self._living.values())

    @property
    def sessions(self) -> tuple[int, ...]:
        """Those of which servers have told, and that are not over."""
        return tuple(sorted(self._living))

    def of(self, session: int) -> Account:
        """Of one session that lives."""
        return self._living.get(session, Account())

    @property
    def settled(self) -> Ranges:
        """Nothing can be forgotten by its place: each session has a line of its own."""
        return ()

    def is_over(self, fraction: float, of: str, sessions: Sequence[int]) -> bool:
        """Never: whoever serves decides when it ends."""
        return False

    def hand_out(self, session: int, most: int, *, only_divided: bool = False) -> tuple[int, int] | None:
        """Nothing: clients have their own."""
        return None

    def said(self, session: int, servers: Sequence[Said]) -> None:
        """What each of all servers says of a session's samples."""
        self._living[session] = _account(servers, is_over=False)

    def ended(self, session: int, servers: Sequence[Said], back: Ranges = ()) -> Ranges:
        """The session is over on all servers, which say this of it for the last time."""
        self._living.pop(session, None)
        self._before = _sum(self._before, _account(servers, is_over=True))
        return ()


def _sum(*accounts: Account) -> Account:
    return Account(**{name: sum(vars(each)[name] for each in accounts) for name in vars(accounts[0])})


def _account(servers: Sequence[Said], *, is_over: bool) -> Account:
    counted: Ranges = reduce(common, (applied for applied, _ in servers))
    somewhere = without(joined(*(applied for applied, _ in servers)), counted)
    known: Ranges = reduce(common, (joined(*each) for each in servers))
    torn = somewhere if is_over else common(somewhere, known)
    refused = without(without(known, counted), somewhere)
    sizes = {"counted": size(counted), "torn": size(torn), "refused": size(refused)}
    return Account(handed_out=sum(sizes.values()), **sizes)
