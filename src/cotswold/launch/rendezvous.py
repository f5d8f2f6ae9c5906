"""Rendezvous of ranks in a store: rank 0 opens the session, each rank claims its number, all compare claims.

Knows: names and texts in the store, signatures, identities of processes. Does not know: how the store is
reached, beats, process groups.

Rank 0 opens the session: it draws a nonce and signs it with the run's token. The key of all later signatures
is derived from the token and the nonce, so texts of earlier starts are ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # documented, not in __all__

from cotswold.errors import LaunchError
from cotswold.host.process_info import identity
from cotswold.host.token import Token
from cotswold.launch import rank_log as own_log
from cotswold.launch.signed_store import SignedStore
from cotswold.launch.startup import Waiting
from cotswold.launch.store_connection import Connections
from cotswold.launch.watch.abort_reason import Verdict
from cotswold.launch.watch.monitor import END, name_of

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # documented, not in __all__

_OPEN, _ROLL = "open", "roll"


@dataclass(frozen=True)
class Opening:
    """The first message of rank 0: the number of ranks, and a nonce for this start alone."""

    size: int
    nonce: str

    def dumps(self) -> str:
        """Serialise for the store."""
        return json.dumps([self.size, self.nonce])

    @classmethod
    def loads(cls, text: str) -> Opening:
        """Parse the store's text."""
        return cls(*json.loads(text))


@dataclass(frozen=True)
class Meeting:
    """The session of one start: torch's store, and the same store with signed texts."""

    raw: Store
    signed: SignedStore
    opening: Opening


@dataclass(frozen=True)
class Rendezvous:
    """The rendezvous of one rank of ``size`` with the others, over ``connections`` to one store.

    ``job`` distinguishes this start from others that use the same store and ``token``.
    """

    rank: int
    size: int
    host: str
    job: str
    token: Token
    connections: Connections
    waiting: Waiting
    _warned: threading.Event = field(default_factory=threading.Event)

    def meet(self) -> Meeting:
        """Open the session as rank 0, or find it; RankError if the store cannot be reached in time."""
        store, within = self.connections.first(), self.waiting.within
        if self.rank == 0:
            return within(lambda: self._open(store))
        public = self._public(store)
        while (opening := within(lambda: self._opened(public))) is None:
            self.waiting.again(
                "which has not arrived or uses another token; give all ranks the same COTSWOLD_TOKEN"
            )
        return self._meeting(store, opening)

    def again(self, meeting: Meeting) -> SignedStore:
        """Return the session's signed store over a separate connection."""
        return self._meeting(self.connections.another(), meeting.opening).signed

    def claim(self, meeting: Meeting, facts: Mapping[str, str]) -> None:
        """Claim this rank; LaunchError if another process holds it, or if the number of ranks differs."""
        size, within = meeting.opening.size, self.waiting.within
        if size != self.size:
            said = f"{self.waiting.me} was started as one of {self.size} ranks, rank 0 as one of {size}"
            verdict = Verdict(self.rank, said, silent=False).dumps()
            within(lambda: meeting.signed.write_first(END, verdict))
            raise LaunchError(f"{said}; start all ranks with the same number")
        claim = json.dumps(
            {
                "host": self.host,
                "process": identity(),
                "pid": os.getpid(),
                "nonce": secrets.token_hex(16),
                "facts": dict(facts),
            }
        )
        holder = within(lambda: meeting.signed.write_first(_member(self.rank), claim))
        if holder != claim:
            other = json.loads(holder)
            raise LaunchError(
                f"rank {self.rank} is taken: process {other['pid']} on {other['host']} has joined with it; "
                "give each process a different rank, and each job a different port"
            )

    def members(self, meeting: Meeting) -> list[dict[str, Any]]:
        """Return the claims of all ranks, once rank 0 has seen the same: none is of an earlier start."""
        names, within = [_member(rank) for rank in range(self.size)], self.waiting.within
        while True:
            claims = within(lambda: meeting.signed.read(names))
            roll = hashlib.sha256(json.dumps(claims).encode()).hexdigest()
            if None not in claims and self.rank == 0:
                within(partial(meeting.signed.write, _ROLL, roll))
            if None not in claims and within(lambda: meeting.signed.read([_ROLL])) == [roll]:
                return [json.loads(claim) for claim in claims if claim is not None]
            self.waiting.again("which does not see the same ranks")

    def _public(self, store: Store) -> SignedStore:
        """Store of the opening message; its names depend on the job, so that jobs stay apart."""
        place = PrefixStore(f"cotswold {self.job}", store)
        return SignedStore(place, self.token.derive(f"launch {self.job}"), self._warn)

    def _meeting(self, store: Store, opening: Opening) -> Meeting:
        start = f"launch {self.job} {opening.nonce}"
        place = PrefixStore(f"cotswold {self.job} {opening.nonce}", store)
        return Meeting(place, SignedStore(place, self.token.derive(start), self._warn), opening)

    def _open(self, store: Store) -> Meeting:
        meeting = self._meeting(store, Opening(self.size, secrets.token_hex(16)))
        ranks = range(self.size)
        meeting.signed.prepare([*map(name_of, ranks), *map(_member, ranks), END, _ROLL])
        self._public(store).write(_OPEN, meeting.opening.dumps())
        return meeting

    def _opened(self, public: SignedStore) -> Opening | None:
        if not public.has(_OPEN):
            return None
        text = public.read([_OPEN])[0]
        return None if text is None else Opening.loads(text)

    def _warn(self, name: str) -> None:
        """Report once that another process writes into the store."""
        if not self._warned.is_set():
            self._warned.set()
            own_log.say(
                f"what the ranks' store at {self.waiting.master} holds under {name!r} is not signed with "
                "this run's token, and is ignored; another program writes there, or the ranks' tokens "
                "differ"
            )


def _member(rank: int) -> str:
    """Name under which a rank's claim is stored."""
    return f"member/{rank}"
