"""Ranks that wait for work and measure, on this host or on several.

Knows: how to start ranks, give them work, and end them. Does not know: the work.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from time import monotonic
from types import TracebackType
from typing import Any

from cotswold.bench.ranks import rank as ranks
from cotswold.errors import MachineError
from cotswold.testing.hosts import INTERFACE, Hosts

_LOOPBACK = "127.0.0.1"
_EXIT_WAIT_SECONDS = 5.0
TIMEOUT_SECONDS = 600.0
"""Seconds to wait for an answer."""


class Stopwatch:
    """A clock that advances only by the seconds that ranks have measured."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def __call__(self) -> float:
        """Seconds so far."""
        return self._seconds

    def add(self, seconds: float) -> None:
        """Advance the clock."""
        self._seconds += seconds


class RankPool:
    """``count`` ranks of one process group; use in a `with` statement.

    With ``hosts``, rank k runs on host ``k * hosts.count // count``; otherwise all run on this host, over
    loopback. Each uses ``threads`` threads. A rank that fails ends the pool with MachineError.
    """

    def __init__(self, count: int, threads: int = 1, hosts: Hosts | None = None) -> None:
        self.count, self._threads, self._hosts = count, threads, hosts
        self._ranks: list[tuple[subprocess.Popen[bytes], Connection]] = []

    def host_of(self, rank: int) -> int:
        """The number of a rank's host."""
        return 0 if self._hosts is None else rank * self._hosts.count // self.count

    def __enter__(self) -> RankPool:
        try:
            for rank in range(self.count):
                self._ranks.append(self._start_rank(rank))
            address = _LOOPBACK if self._hosts is None else self._hosts.address(0)
            (port,) = self.call(ranks.open_store, address, only=[0])
            self._run_on_all(
                [(ranks.join, (rank, self.count, address, port)) for rank in range(self.count)],
                range(self.count),
            )
        except BaseException:
            self._dismiss()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._dismiss()

    def call(self, work: ranks.RankFunction, *arguments: Any, only: Sequence[int] | None = None) -> list[Any]:
        """The results of ``work(rank, *arguments)`` on every rank, or on the ranks of ``only``."""
        chosen = range(self.count) if only is None else only
        return self._run_on_all([(work, arguments)] * len(chosen), chosen)

    def action(
        self, name: str, clock: Stopwatch, only: Sequence[int] | None = None, barrier: bool = True
    ) -> Callable[[], None]:
        """A call of an action on ranks, which advances the clock by the seconds of the slowest."""
        return lambda: clock.add(max(self.call(ranks.timed, name, barrier, only=only)))

    def _start_rank(self, rank: int) -> tuple[subprocess.Popen[bytes], Connection]:
        ours, theirs = Pipe()
        host = self.host_of(rank)
        words = [sys.executable, "-m", ranks.__name__, str(theirs.fileno()), str(self._threads)]
        process = subprocess.Popen(
            [*(self._hosts.words(host) if self._hosts is not None else ()), *words],
            env=self._environment(),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # this process handles signals of the terminal
        )
        theirs.close()
        return process, ours

    def _environment(self) -> Mapping[str, str]:
        threads = dict.fromkeys(
            ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(self._threads)
        )
        interface = "lo" if self._hosts is None else INTERFACE
        path = os.pathsep.join(place for place in sys.path if place)
        quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # torch warns that addresses in namespaces have no names
        return {**os.environ, **threads, **quiet, "GLOO_SOCKET_IFNAME": interface, "PYTHONPATH": path}

    def _run_on_all(
        self, orders: Sequence[tuple[ranks.RankFunction, tuple[Any, ...]]], chosen: Sequence[int]
    ) -> list[Any]:
        for rank, order in zip(chosen, orders, strict=True):
            self._ranks[rank][1].send_bytes(pickle.dumps(order))
        return self._receive_all(chosen)

    def _receive_all(self, chosen: Sequence[int]) -> list[Any]:
        """The ranks' answers; a failed rank is reported at once, since others may wait for it."""
        end, answers = monotonic() + TIMEOUT_SECONDS, dict[int, Any]()
        waiting = {self._ranks[rank][1]: rank for rank in chosen}
        while waiting:
            ready = wait(list(waiting), max(end - monotonic(), 0))
            if not ready:
                raise MachineError(
                    f"{_name_ranks(waiting.values())} gave no answer within {TIMEOUT_SECONDS:.0f} s; keep "
                    "the machine idle during measurements, or try --quick"
                )
            for orders in ready:
                assert isinstance(orders, Connection), "only pipes are in the wait set"
                rank = waiting.pop(orders)
                answers[rank] = self._receive(rank)
        return [answers[rank] for rank in chosen]

    def _receive(self, rank: int) -> Any:
        process, orders = self._ranks[rank]
        try:
            done, value = pickle.loads(orders.recv_bytes())
        except (EOFError, ConnectionResetError) as error:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_EXIT_WAIT_SECONDS)
            raise MachineError(
                f"rank {rank} of {self.count} ended with exit code {process.returncode}, by a crash or "
                "by lack of memory; --only and --match measure a part"
            ) from error
        if not done:
            sentence, where = value
            raise MachineError(
                f"rank {rank} of {self.count} failed with {sentence}; --debug shows where"
            ) from RuntimeError(where)
        return value

    def _dismiss(self) -> None:
        for process, orders in self._ranks:
            orders.close()
            process.kill()
            process.wait()
        self._ranks = []


def _name_ranks(ranks: Iterable[int]) -> str:
    return " and ".join(f"rank {rank}" for rank in sorted(ranks))
