"""How ranks find the store through which they speak.

Knows: torch's TCPStore, who keeps it, where, how long to wait. Does not know: beats, facts, process groups.

Rank 0 opens the meeting: it draws a number that nobody has had before, and signs it with the run's token. The
key of all that is signed from then on is derived from both, so nothing counts that was written at another
start.

A call of a store may hang for ever when the process that keeps it is stopped, whatever the store's timeout
says; so each call before the heartbeat begins is made in a thread that nobody waits for longer than the
timeout.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from torch.distributed import (  # type: ignore[attr-defined]  # in its documentation, not in its __all__
    DistNetworkError,
    PrefixStore,
    Store,
    TCPStore,
)

from cotswold.errors import LaunchError, RankError
from cotswold.host.interface import address_of_keeper, listener_at
from cotswold.host.process import identity
from cotswold.host.token import Token
from cotswold.launch import own_log
from cotswold.launch.monitor import END, name_of
from cotswold.launch.signed import SignedStore
from cotswold.launch.verdict import Verdict
from cotswold.launch.world import World

T = TypeVar("T")

_CALL = timedelta(seconds=10)
"""The most that one call of the store takes while its keeper lives."""


INTERFACE = "GLOO_SOCKET_IFNAME"
"""The variable in which a user names the network interface of the ranks."""
_OPEN, _ROLL = "open", "roll"


@dataclass(frozen=True)
class Opening:
    """What rank 0 says first: how many ranks there are, and a number that belongs to this start alone."""

    size: int
    nonce: str

    def dumps(self) -> str:
        """As text for the store."""
        return json.dumps([self.size, self.nonce])

    @classmethod
    def loads(cls, text: str) -> Opening:
        """From the store's text."""
        return cls(*json.loads(text))


@dataclass(frozen=True)
class Meeting:
    """The store in which the ranks of one start meet: its address, as torch has it, with its texts signed."""

    address: str
    raw: Store
    signed: SignedStore
    opening: Opening


@dataclass(frozen=True)
class Rendezvous:
    """The meeting of one rank with the others: at most ``arrival_seconds`` until all are there."""

    world: World
    host: str
    token: Token
    timeout_seconds: float
    arrival_seconds: float
    deadline: float
    _warned: threading.Event = field(default_factory=threading.Event)

    def meet(self) -> Meeting:
        """Open the store as rank 0, or find it opened; raises RankError if it cannot be reached in time."""
        if self.world.rank == 0 and not self.world.hosted:
            tcp = self._keep()
        else:
            self._reach()
            # rank 0 may have inherited a socket that listens, and import torch before it answers
            seconds = max(self.deadline - time.monotonic(), self.timeout_seconds)
            tcp = self._connect(self._address(), seconds)
        if self.world.rank == 0:
            return self._within(lambda: self._open(tcp))
        public = self._public(tcp)
        while (opening := self._within(lambda: self._opened(public))) is None:
            self._wait("which has not come, or has another token; give all ranks the same COTSWOLD_TOKEN")
        return self._meeting(tcp, opening)

    def again(self, meeting: Meeting) -> SignedStore:
        """The same by a connection of its own: calls on one connection wait for each other."""
        return self._meeting(self._connect(meeting.address, self.timeout_seconds), meeting.opening).signed

    def claim(self, meeting: Meeting, facts: Mapping[str, str]) -> None:
        """Say that this process is this rank; LaunchError if another is, or the number of ranks differs."""
        world, size = self.world, meeting.opening.size
        if size != world.size:
            said = f"{self._me()} was started as one of {world.size} ranks, rank 0 as one of {size}"
            verdict = Verdict(world.rank, said, silent=False).dumps()
            self._within(lambda: meeting.signed.write_first(END, verdict))
            raise LaunchError(f"{said}; start all with the same number")
        claim = json.dumps(
            {
                "host": self.host,
                "process": identity(),
                "pid": os.getpid(),
                "nonce": secrets.token_hex(16),
                "facts": dict(facts),
            }
        )
        holder = self._within(lambda: meeting.signed.write_first(_member(world.rank), claim))
        if holder != claim:
            other = json.loads(holder)
            raise LaunchError(
                f"rank {world.rank} is taken: process {other['pid']} on {other['host']} has joined as it; "
                "give each process a rank of its own, and each job a port of its own"
            )

    def members(self, meeting: Meeting) -> list[dict[str, Any]]:
        """What all ranks claim to be, once rank 0 has seen each claim: so none is of an earlier start."""
        names = [_member(rank) for rank in range(self.world.size)]
        while True:
            claims = self._within(lambda: meeting.signed.read(names))
            roll = hashlib.sha256(json.dumps(claims).encode()).hexdigest()
            if None not in claims and self.world.rank == 0:
                self._within(partial(meeting.signed.write, _ROLL, roll))
            if None not in claims and self._within(lambda: meeting.signed.read([_ROLL])) == [roll]:
                return [json.loads(claim) for claim in claims if claim is not None]
            self._wait("which does not see the same ranks")

    def _connect(self, address: str, seconds: float) -> TCPStore:
        timeout = timedelta(seconds=seconds)
        tcp = self._within(
            lambda: TCPStore(address, self.world.port, wait_for_workers=False, timeout=timeout),
            seconds,
        )
        tcp.set_timeout(_CALL)
        return tcp

    def _address(self) -> str:
        several = self.world.local_size < self.world.size
        return address_of_keeper(
            self.world.host, several_hosts=several, interface=os.environ.get(INTERFACE, "").partition(",")[0]
        )

    def _keep(self) -> TCPStore:
        world = self.world
        try:
            listener = world.listener
            if listener is None:
                chosen = os.environ.get(INTERFACE, "").partition(",")[0]
                listener = listener_at(self._address(), world.port, interface=chosen).detach()
            with socket.socket(fileno=os.dup(listener)) as same:
                address = same.getsockname()[0]
            return TCPStore(
                address,
                world.port,
                is_master=True,
                wait_for_workers=False,
                timeout=_CALL,
                master_listen_fd=listener,  # torch would listen on all interfaces; it closes this one
            )
        except (DistNetworkError, OSError) as error:
            said = " ".join((getattr(error, "strerror", None) or str(error)).split())[:200]
            if getattr(error, "errno", None) == errno.EADDRINUSE:
                said = "the port is taken"
            raise RankError(
                f"{self._me()} cannot keep the ranks' store at {world.master} ({said}); choose another port "
                "with MASTER_PORT, or an address of this host with MASTER_ADDR"
            ) from error

    def _public(self, tcp: TCPStore) -> SignedStore:
        """Where the opening is; a job that meets another's store by mistake does not read its names."""
        store = PrefixStore(f"cotswold {self.world.job}", tcp)
        return SignedStore(store, self.token.derive(f"launch {self.world.job}"), self._warn)

    def _meeting(self, tcp: TCPStore, opening: Opening) -> Meeting:
        start = f"launch {self.world.job} {opening.nonce}"
        store = PrefixStore(f"cotswold {self.world.job} {opening.nonce}", tcp)
        return Meeting(tcp.host, store, SignedStore(store, self.token.derive(start), self._warn), opening)

    def _open(self, tcp: TCPStore) -> Meeting:
        meeting = self._meeting(tcp, Opening(self.world.size, secrets.token_hex(16)))
        ranks = range(self.world.size)
        meeting.signed.prepare([*map(name_of, ranks), *map(_member, ranks), END, _ROLL])
        self._public(tcp).write(_OPEN, meeting.opening.dumps())
        return meeting

    def _opened(self, public: SignedStore) -> Opening | None:
        if not public.has(_OPEN):
            return None
        text = public.read([_OPEN])[0]
        return None if text is None else Opening.loads(text)

    def _warn(self, name: str) -> None:
        """Say once that somebody else writes into the store."""
        if not self._warned.is_set():
            self._warned.set()
            own_log.say(
                f"what stands in the ranks' store at {self.world.master} under {name!r} is not signed with "
                "this run's token, and is ignored: a stranger writes there, or the ranks' tokens differ"
            )

    def _reach(self) -> None:
        """Knock until somebody listens: in Python, where signals are heard and nothing is logged."""
        while True:
            try:
                seconds = min(max(self.deadline - time.monotonic(), 0.1), 5.0)
                socket.create_connection((self._address(), self.world.port), seconds).close()
                return
            except (OSError, UnicodeError) as error:  # the latter for what cannot be a name
                self._wait(f"which cannot be reached ({getattr(error, 'strerror', None) or error})")

    def _wait(self, why: str) -> None:
        if time.monotonic() > self.deadline:
            raise RankError(
                f"{self._me()} has waited {self.arrival_seconds:.3g} s for rank 0 at {self.world.master}, "
                f"{why}; see why it did not start, or whether a firewall is between"
            )
        time.sleep(0.05)

    def _within(self, call: Callable[[], T], seconds: float | None = None) -> T:
        """The result of a call of the store, if it comes within the timeout, or so many seconds."""
        seconds = self.timeout_seconds if seconds is None else seconds
        results: list[T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                results.append(call())
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="cotswold rendezvous", daemon=True)
        thread.start()
        thread.join(seconds)
        if results:
            return results[0]
        reason = f"{errors[0]}" if errors else f"no answer for {seconds:.3g} s"
        raise RankError(
            f"{self._me()} has lost rank 0 at {self.world.master} ({' '.join(reason.split())[:200]}); "
            "see what became of it"
        ) from (errors[0] if errors else None)

    def _me(self) -> str:
        return f"rank {self.world.rank} on {self.host}"


def _member(rank: int) -> str:
    """Where a rank claims to be that one."""
    return f"member/{rank}"
