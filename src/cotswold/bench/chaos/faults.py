"""Mistakes that are planted in the machines, to see that the judges find them.

Knows: one way in which each machine could be wrong. Does not know: how it is found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cotswold.bench.chaos.disk_faults import DISK_FAULTS
from cotswold.bench.chaos.planting import Fault
from cotswold.server.control.claims import Claims
from cotswold.server.control.electing import Election
from cotswold.server.control.leading import Transact
from cotswold.server.control.map import Map
from cotswold.server.copies.contents import Contents, Difference
from cotswold.server.copies.copy import Copy
from cotswold.server.copies.lease import Lease
from cotswold.server.messages import Caught, Fence, Fenced, Group, Prepare, Send
from cotswold.server.session import Session

_Any = Any
"""Machines are patched whatever their numbers are."""


def _any_term(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def prepare(self: Copy[_Any], sender: str, message: Prepare, now: float) -> list[Send]:
        self.fence = self.group.term
        return list(right(self, self.group.primary, replace(message, term=self.group.term), now))

    return prepare


def _at_once(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def commit(self: Copy[_Any], now: float) -> list[Send]:
        if self.is_acting(now):
            self.committed = self.contents.index
        return list(right(self, now))

    return commit


def _without_sessions(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def since(self: Contents[_Any], after: int) -> Difference:
        told: Difference = right(self, after)
        sessions = tuple(replace(each, last=0, applied=None, samples=()) for each in told.change.sessions)
        return replace(told, change=replace(told.change, sessions=sessions))

    return since


def _long_lease(right: Callable[..., _Any]) -> Callable[..., _Any]:
    return lambda self, number, seconds: right(self, number, 4 * seconds)


def _no_lease(_: Callable[..., _Any]) -> Callable[..., _Any]:
    return lambda self, now: True


def _shortest(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def decided(self: Election, *words: _Any) -> Group | None:
        own = self.answers
        self.answers = {
            name: each if each.index < 0 else replace(each, index=10**9 - each.index)
            for name, each in own.items()
        }
        try:
            found: Group | None = right(self, *words)
        finally:
            self.answers = own
        return found

    return decided


def _never(_: Callable[..., _Any]) -> Callable[..., _Any]:
    return lambda *_: False


def _always(_: Callable[..., _Any]) -> Callable[..., _Any]:
    return lambda *_: True


def _unfenced(_: Callable[..., _Any]) -> Callable[..., _Any]:
    def fenced(self: Copy[_Any], fence: Fence) -> Fenced:
        return Fenced(self.bucket, fence.term, self.server, self.group.term, self.index)

    return fenced


def _caught_early(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def prepared(self: Copy[_Any], sender: str, message: _Any, now: float) -> list[Send]:
        sends: list[Send] = right(self, sender, message, now)
        if sender in self.group.learners and sender in self._peers:
            self._peers[sender].is_needed = False
            if not any(isinstance(each.message, Caught) for each in sends):
                sends.append(Send("controllers", Caught(self.bucket, self.group.term, self.server, sender)))
        return sends

    return prepared


def _uncompared(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def transaction(self: Map, *words: _Any) -> Transact | None:
        asked: Transact | None = right(self, *words)
        return None if asked is None else replace(asked, compare=())

    return transaction


def _frozen_is_now(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def since(self: Contents[_Any], after: int) -> Difference:
        self._froze_then = True
        found: Difference = right(self, after)
        return found

    return since


def _guessed(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def state(self: Session, number: int) -> _Any:
        return replace(right(self, number), last=max(0, self.last - (self.answer is None)))

    return state


def _unheld(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def hold(self: Copy[_Any], sends: list[Send], now: float) -> list[Send]:
        return [*sends, *right(self, [], now)]

    return hold


def _one_is_enough(right: Callable[..., _Any]) -> Callable[..., _Any]:
    def commit(self: Copy[_Any], now: float) -> list[Send]:
        if self.is_acting(now) and self._peers:
            has = [each.has or 0 for each in self._peers.values()]
            self.committed = max(self.committed, min(max(has), self.contents.index))
        return list(right(self, now))

    return commit


FAULTS: Mapping[str, Fault] = {
    "any-term": Fault("a secondary prepares whatever comes, of any term", Copy, "prepare", _any_term),
    "at-once": Fault("a primary says what nobody else has prepared", Copy, "_commit", _at_once),
    "one-is-enough": Fault("a primary waits for one member alone", Copy, "_commit", _one_is_enough),
    "unheld": Fault("a primary answers before it replicates", Copy, "_hold", _unheld),
    "no-numbers": Fault("senders' numbers are not replicated", Contents, "since", _without_sessions),
    "guessed-number": Fault("an unknown answer is taken for one that waits", Session, "state", _guessed),
    "frozen-is-now": Fault("what is now is taken for what was frozen", Contents, "since", _frozen_is_now),
    "long-lease": Fault("a server counts its lease too long", Lease, "given", _long_lease),
    "no-lease": Fault("a primary acts without a lease", Lease, "holds", _no_lease),
    "claims-unchecked": Fault("a lease is given to whoever was primary", Claims, "may_lead", _always),
    "shortest": Fault("the shortest is elected", Election, "decided", _shortest),
    "unfenced": Fault("who was fenced goes on", Copy, "fenced", _unfenced),
    "keeps-all": Fault("a copy keeps what may be of another history", Copy, "_is_foreign", _never),
    "caught-early": Fault("a learner is a member before it is waited for", Copy, "prepared", _caught_early),
    "uncompared": Fault("controllers write without comparing", Map, "transaction", _uncompared),
    **DISK_FAULTS,
}
"""By name."""
