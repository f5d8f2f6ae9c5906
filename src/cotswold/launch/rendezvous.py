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
from cotswold.host.process_info import process_identity
from cotswold.host.token import Token
from cotswold.launch import rank_log
from cotswold.launch.signed_store import SignedStore
from cotswold.launch.startup import StartupDeadline
from cotswold.launch.store_connection import Connections
from cotswold.launch.watch.abort_reason import AbortReason
from cotswold.launch.watch.monitor import ABORT_KEY, beat_key

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # documented, not in __all__

_HEADER, _ROSTER = "open", "roster"


@dataclass(frozen=True)
class SessionHeader:
    """The first message of rank 0: the number of ranks, and a nonce for this start alone."""

    size: int
    nonce: str

    def dumps(self) -> str:
        """Serialise for the store."""
        return json.dumps([self.size, self.nonce])

    @classmethod
    def loads(cls, text: str) -> SessionHeader:
        """Parse the store's text."""
        return cls(*json.loads(text))


@dataclass(frozen=True)
class Session:
    """The session of one start: torch's store, and the same store with signed texts."""

    raw: Store
    signed: SignedStore
    header: SessionHeader


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
    startup: StartupDeadline
    _warned: threading.Event = field(default_factory=threading.Event)

    def open_session(self) -> Session:
        """Open the session as rank 0, or find it; RankError if the store cannot be reached in time."""
        store, within = self.connections.open_first(), self.startup.call_with_timeout
        if self.rank == 0:
            return within(lambda: self._create_session(store))
        public = self._public_store(store)
        while (header := within(lambda: self._read_header(public))) is None:
            self.startup.pause_before_retry(
                "which has not arrived or uses another token; give all ranks the same COTSWOLD_TOKEN"
            )
        return self._session(store, header)

    def reconnect(self, session: Session) -> SignedStore:
        """Return the session's signed store over a separate connection."""
        return self._session(self.connections.open_another(), session.header).signed

    def claim_rank(self, session: Session, facts: Mapping[str, str]) -> None:
        """Claim this rank; LaunchError if another process holds it, or if the number of ranks differs."""
        size, within = session.header.size, self.startup.call_with_timeout
        if size != self.size:
            said = f"{self.startup.own_name} was started as one of {self.size} ranks, rank 0 as one of {size}"
            reason = AbortReason(self.rank, said, silent=False).dumps()
            within(lambda: session.signed.write_if_absent(ABORT_KEY, reason))
            raise LaunchError(f"{said}; start all ranks with the same number")
        claim = json.dumps(
            {
                "host": self.host,
                "process": process_identity(),
                "pid": os.getpid(),
                "nonce": secrets.token_hex(16),
                "facts": dict(facts),
            }
        )
        holder = within(lambda: session.signed.write_if_absent(_member_key(self.rank), claim))
        if holder != claim:
            other = json.loads(holder)
            raise LaunchError(
                f"rank {self.rank} is taken: process {other['pid']} on {other['host']} has joined with it; "
                "give each process a different rank, and each job a different port"
            )

    def read_members(self, session: Session) -> list[dict[str, Any]]:
        """Return the claims of all ranks, once rank 0 has seen the same: none is of an earlier start."""
        names, within = [_member_key(rank) for rank in range(self.size)], self.startup.call_with_timeout
        while True:
            claims = within(lambda: session.signed.read(names))
            roster = hashlib.sha256(json.dumps(claims).encode()).hexdigest()
            if None not in claims and self.rank == 0:
                within(partial(session.signed.write, _ROSTER, roster))
            if None not in claims and within(lambda: session.signed.read([_ROSTER])) == [roster]:
                return [json.loads(claim) for claim in claims if claim is not None]
            self.startup.pause_before_retry("which does not see the same ranks")

    def _public_store(self, store: Store) -> SignedStore:
        """Store of the header message; its names depend on the job, so that jobs stay apart."""
        place = PrefixStore(f"cotswold {self.job}", store)
        return SignedStore(place, self.token.derive(f"launch {self.job}"), self._warn)

    def _session(self, store: Store, header: SessionHeader) -> Session:
        start = f"launch {self.job} {header.nonce}"
        place = PrefixStore(f"cotswold {self.job} {header.nonce}", store)
        return Session(place, SignedStore(place, self.token.derive(start), self._warn), header)

    def _create_session(self, store: Store) -> Session:
        session = self._session(store, SessionHeader(self.size, secrets.token_hex(16)))
        ranks = range(self.size)
        session.signed.prepare([*map(beat_key, ranks), *map(_member_key, ranks), ABORT_KEY, _ROSTER])
        self._public_store(store).write(_HEADER, session.header.dumps())
        return session

    def _read_header(self, public: SignedStore) -> SessionHeader | None:
        if not public.has(_HEADER):
            return None
        text = public.read([_HEADER])[0]
        return None if text is None else SessionHeader.loads(text)

    def _warn(self, name: str) -> None:
        """Report once that another process writes into the store."""
        if not self._warned.is_set():
            self._warned.set()
            rank_log.log_message(
                f"what the ranks' store at {self.startup.master} holds under {name!r} is not signed with "
                "this run's token, and is ignored; another program writes there, or the ranks' tokens "
                "differ"
            )


def _member_key(rank: int) -> str:
    """Name under which a rank's claim is stored."""
    return f"member/{rank}"
