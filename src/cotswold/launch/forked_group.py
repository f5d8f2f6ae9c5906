"""A group of local ranks that one leader process forks; all of its ranks end together.

Knows: forks of this process, their rendezvous, the report of a death. Does not know: what ranks compute, the
process that started the leader.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import NoReturn

from cotswold.errors import ANOTHER_RANK_EXIT, CotswoldError, RankError, UserError
from cotswold.host import Call, ForkServer, Process, Token, granted_cores, token
from cotswold.launch import rank_log
from cotswold.launch.membership import TIMEOUT_SECONDS, Membership, join
from cotswold.launch.watch.failure import is_peer_lost
from cotswold.launch.world import LOOPBACK, World, settings_of

_INTERRUPT = signal.SIGUSR1
"""Signal with which the watching thread interrupts the main thread."""
_OWN_ERROR_SECONDS = 1.0
"""Seconds to wait for the leader's own error after a rank failed by itself.

The same failure most likely happens on all ranks, and the leader's message is better.
"""
_END_SECONDS = 5.0
"""Seconds from the death of a rank to the end of its leader, at most."""
_POLL_SECONDS = 0.5
_REPORT_SECONDS = 0.5
"""Seconds to wait for the report of a death after an exchange broke."""


@dataclass(frozen=True)
class LeaderGroup:
    """The ranks of a group as their leader sees them."""

    ranks: Membership
    processes: tuple[Process, ...]
    """Processes of ranks 1, 2, …"""
    _broken: threading.Event = field(default_factory=threading.Event)

    def await_rank_death(self, error: BaseException) -> None:
        """Wait if an exchange failed because a rank died: this process ends, and ``error`` needs no report.

        For threads other than the main thread.
        """
        if self._broken.wait(_END_SECONDS if is_peer_lost(error) else _REPORT_SECONDS):
            time.sleep(2 * _END_SECONDS)


@contextmanager
def lead(
    function: str,
    arguments: Mapping[str, object],
    size: int,
    *,
    given: Mapping[str, object] | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Iterator[LeaderGroup]:
    """Fork ranks 1 to ``size`` - 1 from this process and be rank 0, for a `with` block.

    Call it in the main thread of a process that has no other thread yet, because forks would lack the other
    threads. Linux only.

    Args:
        function: Function that each forked rank calls, as "module:function". It receives ``arguments`` and
            ``place``, with which it enters `follow`.
        arguments: Keyword arguments of ``function``.
        size: Number of ranks, including this process.
        given: Objects that a forked rank finds with `host.inherited`.
        timeout_seconds: Seconds of silence after which a rank ends this process, as in `join`.

    Yields:
        The membership of this process, and the processes of the other ranks.

    Raises:
        RankError: In the main thread, at any point of the block, if a rank ends; it names the rank and the
            reason. UserError if the rank ended with a UserError.

    At the end of the block the ranks wait for each other. If an error leaves the block, threads of the
    heartbeat continue: this process must end.
    """
    secret = Token.new()
    server = ForkServer.of_this_process(given or {})
    try:
        with socket.create_server((LOOPBACK, 0), backlog=4 * size) as listener:
            master = f"{LOOPBACK}:{listener.getsockname()[1]}"
            world = World(0, size, 0, size, master, "cotswold", listener=os.dup(listener.fileno()))
        settings = settings_of(world, granted_cores(environ={}), os.environ)
        settings.pop("OMP_NUM_THREADS")  # torch is there already
        started = []
        for rank in range(1, size):
            place = {"rank": rank, "size": size, "master": master, "timeout_seconds": timeout_seconds}
            variables = {**settings, token.VARIABLE: secret.text}
            call = Call(f"rank {rank}", function, {**arguments, "place": place}, variables)
            started.append(server.start(call))
        os.environ.update(settings)
        joined = join(world, token=secret, timeout_seconds=timeout_seconds)
        with _watch_processes(started) as broken, _leave_only_without_error(joined) as ranks:
            yield LeaderGroup(ranks, tuple(started), broken)
            broken.set()
    finally:
        server.close()


@contextmanager
def follow(place: Mapping[str, object]) -> Iterator[Membership]:
    """Join the group of `lead` as the rank that ``place`` describes, for a `with` block."""
    rank, size = int(str(place["rank"])), int(str(place["size"]))
    world = World(rank, size, rank, size, str(place["master"]), "cotswold")
    with _leave_only_without_error(
        join(world, timeout_seconds=float(str(place["timeout_seconds"])))
    ) as ranks:
        yield ranks


_open_memberships: list[AbstractContextManager[Membership]] = []
"""Memberships whose block ended with an error; they end with the process."""


@contextmanager
def _leave_only_without_error(joined: AbstractContextManager[Membership]) -> Iterator[Membership]:
    """Enter ``joined``; leave it only if the block ends without an error.

    After an error a thread may hang in an exchange. The process then ends, which the other ranks notice.
    """
    _open_memberships.append(joined)
    yield joined.__enter__()
    _open_memberships.remove(joined)
    joined.__exit__(None, None, None)


@contextmanager
def _watch_processes(processes: Sequence[Process]) -> Iterator[threading.Event]:
    """Raise the end of one of these processes in the main thread, for a `with` block.

    The event is set when a process has ended. The caller sets it to end the watch.
    """
    broken, over = threading.Event(), threading.Event()
    said: list[CotswoldError] = []

    def raise_error(number: int, frame: FrameType | None) -> None:
        if said:
            raise said[0]

    def watch() -> None:
        with selectors.DefaultSelector() as selector:
            for each in processes:
                selector.register(each.fileno(), selectors.EVENT_READ, each)
            while not (found := selector.select(_POLL_SECONDS)):
                if over.is_set():
                    return
        if broken.is_set():  # the group ended in order
            return
        broken.set()
        process: Process = found[0][0].data
        by_itself = (process.code() or 0) > 0
        if over.wait(_OWN_ERROR_SECONDS if by_itself else 0.0):
            return
        said.append(_death_error(process))
        signal.pthread_kill(main, _INTERRUPT)
        if not over.wait(_END_SECONDS):
            _exit_now(said[0])

    main = threading.get_ident()
    before = signal.signal(_INTERRUPT, raise_error)
    thread = threading.Thread(target=watch, name="forked group", daemon=True)
    thread.start()
    try:
        yield broken
    finally:
        over.set()
        thread.join()
        said.clear()
        signal.signal(_INTERRUPT, before)


def _death_error(process: Process) -> CotswoldError:
    kind = UserError if process.code() == UserError.exit_code else RankError
    return kind(f"{process.name} of its group {process.why()}, and ranks of a group end together")


def _exit_now(error: CotswoldError) -> NoReturn:
    """End the process: the main thread hangs, and no exception reaches it."""
    try:
        with suppress(OSError, ValueError):
            rank_log.log_message(f"{error}; stopping")
    finally:
        os._exit(ANOTHER_RANK_EXIT)
