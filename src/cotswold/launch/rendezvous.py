"""How ranks find the store through which they speak.

Knows: torch's TCPStore, who keeps it, how long to wait. Does not know: beats, facts, process groups.

A call of a store may hang for ever when the process that keeps it is stopped, whatever the store's timeout
says; so each call before the pulse beats is made in a thread that nobody waits for longer than the patience.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from torch.distributed import (  # type: ignore[attr-defined]  # in its documentation, not in its __all__
    DistNetworkError,
    PrefixStore,
    Store,
    TCPStore,
)

from cotswold.errors import LaunchError, RankError
from cotswold.launch.process import identity
from cotswold.launch.pulse import ABSENT, NO_END, Verdict
from cotswold.launch.world import World

T = TypeVar("T")

_CALL = timedelta(seconds=10)
"""The most that one call of the store takes while its keeper lives."""


@dataclass(frozen=True)
class Rendezvous:
    """The meeting of one rank with the others: at most ``arrival_seconds`` until all are there."""

    world: World
    host: str
    patience_seconds: float
    arrival_seconds: float
    deadline: float

    def store(self) -> Store:
        """The store of this job, made ready by rank 0; raises RankError if it cannot be reached in time."""
        if self.world.rank == 0 and not self.world.hosted:
            store = self._named(self._keep())
        else:
            self._reach()
            # rank 0 may have inherited a socket that listens, and import torch before it answers
            store = self._connect(max(self.deadline - time.monotonic(), self.patience_seconds))
        if self.world.rank == 0:
            self._within(lambda: self._open(store))
        while not self._within(lambda: store.check(["open"])):
            self._wait("which has not come")
        return store

    def connect(self) -> Store:
        """A connection of its own: calls on one connection wait for each other."""
        return self._connect(self.patience_seconds)

    def claim(self, store: Store, facts: Mapping[str, str]) -> None:
        """Say that this process is this rank; LaunchError if another is, or the number of ranks differs."""
        world = self.world
        size = int(self._within(lambda: store.get("open")))
        if size != world.size:
            said = f"{self._me()} was started as one of {world.size} ranks, rank 0 as one of {size}"
            self._within(
                lambda: store.compare_set("end", NO_END, Verdict(world.rank, said, silent=False).dumps())
            )
            raise LaunchError(f"{said}; start all with the same number")
        claim = json.dumps(
            {"host": self.host, "process": identity(), "pid": os.getpid(), "facts": dict(facts)}
        )
        holder = self._within(lambda: store.compare_set(f"member/{world.rank}", "", claim)).decode()
        if holder != claim:
            other = json.loads(holder)
            raise LaunchError(
                f"rank {world.rank} is taken: process {other['pid']} on {other['host']} has joined as it; "
                "give each process a rank of its own, and each job a port of its own"
            )

    def _connect(self, seconds: float) -> Store:
        world, timeout = self.world, timedelta(seconds=seconds)
        tcp = self._within(
            lambda: TCPStore(world.host, world.port, wait_for_workers=False, timeout=timeout), seconds
        )
        tcp.set_timeout(_CALL)
        return self._named(tcp)

    def _named(self, tcp: TCPStore) -> Store:
        # a job that meets another's store by mistake does not read its keys
        return PrefixStore(f"cotswold {self.world.job}", tcp)

    def _keep(self) -> TCPStore:
        world = self.world
        try:
            return TCPStore(
                world.host,
                world.port,
                is_master=True,
                wait_for_workers=False,
                timeout=_CALL,
                master_listen_fd=world.listener,
            )
        except DistNetworkError as error:
            said = " ".join(str(error).split())[:200]
            raise RankError(
                f"{self._me()} cannot keep the ranks' store at {world.master} "
                f"({'the port is taken' if 'EADDRINUSE' in said else said}); choose another port with "
                "MASTER_PORT, or an address of this host with MASTER_ADDR"
            ) from error

    def _open(self, store: Store) -> None:
        for rank in range(self.world.size):
            store.set(f"beat/{rank}", ABSENT)
        store.set("end", NO_END)
        store.set("open", str(self.world.size))

    def _reach(self) -> None:
        """Knock until somebody listens: in Python, where signals are heard and nothing is logged."""
        while True:
            try:
                seconds = min(max(self.deadline - time.monotonic(), 0.1), 5.0)
                socket.create_connection((self.world.host, self.world.port), seconds).close()
                return
            except OSError as error:
                self._wait(f"which cannot be reached ({error.strerror or error})")

    def _wait(self, why: str) -> None:
        if time.monotonic() > self.deadline:
            raise RankError(
                f"{self._me()} has waited {self.arrival_seconds:.3g} s for rank 0 at {self.world.master}, "
                f"{why}; see why it did not start, or whether a firewall is between"
            )
        time.sleep(0.05)

    def _within(self, call: Callable[[], T], seconds: float | None = None) -> T:
        """The result of a call of the store, if it comes within the patience, or so many seconds."""
        seconds = self.patience_seconds if seconds is None else seconds
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
