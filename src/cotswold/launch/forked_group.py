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
from cotswold.launch import rank_log as own_log
from cotswold.launch.membership import TIMEOUT_SECONDS, Membership, join
from cotswold.launch.watch.failure import peer_lost
from cotswold.launch.world import LOOPBACK, World, settings_of

_WORD = signal.SIGUSR1
"""Signal with which the watching thread interrupts the main thread."""
_OWN_ERROR_SECONDS = 1.0
"""Seconds to wait for the leader's own error after a rank failed by itself.

The same failure most likely happens on all ranks, and the leader's message is better.
"""
_END_SECONDS = 5.0
"""Seconds from the death of a rank to the end of its leader, at most."""
_LOOK_SECONDS = 0.5
_HEARD_SECONDS = 0.5
"""Seconds to wait for the report of a death after an exchange broke."""


@dataclass(frozen=True)
class Led:
    """The ranks of a group as their leader sees them."""

    ranks: Membership
    processes: tuple[Process, ...]
    """Processes of ranks 1, 2, …"""
    _broken: threading.Event = field(default_factory=threading.Event)

    def give_way(self, error: BaseException) -> None:
        """Wait if an exchange failed because a rank died: this process ends, and ``error`` needs no report.

        For threads other than the main thread.
        """
        if self._broken.wait(_END_SECONDS if peer_lost(error) else _HEARD_SECONDS):
            time.sleep(2 * _END_SECONDS)


@contextmanager
def lead(
    function: str,
    arguments: Mapping[str, object],
    size: int,
    *,
    given: Mapping[str, object] | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Iterator[Led]:
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
        with _watched(started) as broken, _left_in_order_alone(joined) as ranks:
            yield Led(ranks, tuple(started), broken)
            broken.set()
    finally:
        server.close()


@contextmanager
def follow(place: Mapping[str, object]) -> Iterator[Membership]:
    """Join the group of `lead` as the rank that ``place`` describes, for a `with` block."""
    rank, size = int(str(place["rank"])), int(str(place["size"]))
    world = World(rank, size, rank, size, str(place["master"]), "cotswold")
    with _left_in_order_alone(join(world, timeout_seconds=float(str(place["timeout_seconds"])))) as ranks:
        yield ranks


_held: list[AbstractContextManager[Membership]] = []
"""Memberships whose block ended with an error; they end with the process."""


@contextmanager
def _left_in_order_alone(joined: AbstractContextManager[Membership]) -> Iterator[Membership]:
    """Enter ``joined``; leave it only if the block ends without an error.

    After an error a thread may hang in an exchange. The process then ends, which the other ranks notice.
    """
    _held.append(joined)
    yield joined.__enter__()
    _held.remove(joined)
    joined.__exit__(None, None, None)


@contextmanager
def _watched(processes: Sequence[Process]) -> Iterator[threading.Event]:
    """Raise the end of one of these processes in the main thread, for a `with` block.

    The event is set when a process has ended. The caller sets it to end the watch.
    """
    broken, over = threading.Event(), threading.Event()
    said: list[CotswoldError] = []

    def heard(number: int, frame: FrameType | None) -> None:
        if said:
            raise said[0]

    def watch() -> None:
        with selectors.DefaultSelector() as selector:
            for each in processes:
                selector.register(each.fileno(), selectors.EVENT_READ, each)
            while not (found := selector.select(_LOOK_SECONDS)):
                if over.is_set():
                    return
        if broken.is_set():  # the group ended in order
            return
        broken.set()
        process: Process = found[0][0].data
        by_itself = (process.code() or 0) > 0
        if over.wait(_OWN_ERROR_SECONDS if by_itself else 0.0):
            return
        said.append(_told(process))
        signal.pthread_kill(main, _WORD)
        if not over.wait(_END_SECONDS):
            _end(said[0])

    main = threading.get_ident()
    before = signal.signal(_WORD, heard)
    thread = threading.Thread(target=watch, name="gang", daemon=True)
    thread.start()
    try:
        yield broken
    finally:
        over.set()
        thread.join()
        said.clear()
        signal.signal(_WORD, before)


def _told(process: Process) -> CotswoldError:
    kind = UserError if process.code() == UserError.exit_code else RankError
    return kind(f"{process.name} of its gang {process.why()}, and ranks of a gang end together")


def _end(error: CotswoldError) -> NoReturn:
    """End the process: the main thread hangs, and no exception reaches it."""
    try:
        with suppress(OSError, ValueError):
            own_log.say(f"{error}; stopping")
    finally:
        os._exit(ANOTHER_RANK_EXIT)
