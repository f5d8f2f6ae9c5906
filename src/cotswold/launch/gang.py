"""A gang: ranks that one process starts on its host, leads, and lives and dies with.

Knows: forks of this process, where they meet, what is said of a death. Does not know: what ranks compute, who
started the leader.
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
"""By it the thread that watches wakes the main thread."""
_OWN_ERROR_SECONDS = 1.0
"""A rank that failed by itself most likely does so with all others: the leader's own words are better."""
_END_SECONDS = 5.0
"""From the death of a rank to the end of its leader, at most."""
_LOOK_SECONDS = 0.5
_HEARD_SECONDS = 0.5
"""An exchange breaks before the death behind it is heard of."""


@dataclass(frozen=True)
class Led:
    """The ranks, as their leader sees them."""

    ranks: Membership
    processes: tuple[Process, ...]
    """Those of ranks 1, 2, …"""
    _broken: threading.Event = field(default_factory=threading.Event)

    def give_way(self, error: BaseException) -> None:
        """Where an exchange failed because a rank died, wait: this process ends, and ``error`` is no news.

        For threads that are not the main one.
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
    """Start ranks 1 to ``size`` - 1 of a gang as forks of this process, and be rank 0, for a `with` block.

    Each calls ``function`` ("module:function") with these ``arguments`` and one more, ``place``, with which
    it enters `follow`. It finds ``given`` by `host.inherited`. For the main thread of a process that has no
    other thread yet: forks would lack it. Linux alone.

    If a rank ends, RankError is raised in the main thread, wherever it is (UserError where the rank ended by
    one): it names the rank, and why it ended. A rank that is silent for ``timeout_seconds`` ends this process
    as `join` says. At the block's end ranks wait for each other; what leaves it as an error leaves nobody
    behind but threads of the heartbeat: this process is to end.
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
    """Be the rank of a gang that `lead` has given this ``place``, for a `with` block."""
    rank, size = int(str(place["rank"])), int(str(place["size"]))
    world = World(rank, size, rank, size, str(place["master"]), "cotswold")
    with _left_in_order_alone(join(world, timeout_seconds=float(str(place["timeout_seconds"])))) as ranks:
        yield ranks


_held: list[AbstractContextManager[Membership]] = []
"""Memberships that an error has left: they go with the process."""


@contextmanager
def _left_in_order_alone(joined: AbstractContextManager[Membership]) -> Iterator[Membership]:
    """As ``joined``, but an error leaves it as it is: the process is to end, by which others hear of it, and
    a thread may hang in an exchange."""
    _held.append(joined)
    yield joined.__enter__()
    _held.remove(joined)
    joined.__exit__(None, None, None)


@contextmanager
def _watched(processes: Sequence[Process]) -> Iterator[threading.Event]:
    """While it lasts, the end of one of these is raised in the main thread.

    The event is set when one has ended; whoever sets it ends the watch.
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
        if broken.is_set():  # the end was in order
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
    """The main thread hangs where no exception reaches it."""
    try:
        with suppress(OSError, ValueError):
            own_log.say(f"{error}; stopping")
    finally:
        os._exit(ANOTHER_RANK_EXIT)
