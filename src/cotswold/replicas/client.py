"""A client of parameter servers for a program's own loop: a thread handles messages, the program blocks.

Knows: endpoints, one thread, flat vectors. Does not know: modules, when to pull and push, sessions and
sequence numbers (`paramserver.core.client`).

The program pulls and pushes whole vectors. In between, the thread sends heartbeats, resends unanswered
messages, and reconnects if the session ended because the program was stopped for too long.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from cotswold import wire as m
from cotswold.errors import CotswoldError, MachineError, UserError
from cotswold.host import Token, wake_pipe
from cotswold.host.owner_process import OwnerProcess
from cotswold.paramserver.core.client import ClientSession, ClientState, PushOutcome
from cotswold.paramserver.core.client_ledger import ANY
from cotswold.paramserver.core.update_sequence import ServerUpdate
from cotswold.processes.endpoint_settings import local_address
from cotswold.shards.runtime.arithmetic import Array, raw
from cotswold.transport import Endpoint, Lost, Ready
from cotswold.transport.address import Address
from cotswold.transport.host_names import address_of
from cotswold.wire.lifecycle import ConnectRequest, Goodbye, RunTerms
from cotswold.wire.messenger import Messenger, Received

_TICK_SECONDS = 0.05
_START_SECONDS = 20.0
"""Seconds to try to reach the servers."""
_LEAVE_SECONDS = 2.0
_LOST_REASON = "its session ended before all servers had answered; some may have it"
_SERVER_LOST_SECONDS = 1.0
"""Seconds to wait for the dismissal after a server is lost; a normal end dismisses the client."""


@dataclass(frozen=True)
class PushResult:
    """Result of a push that was not refused as invalid."""

    number: int
    """1, 2, 3, ... of this connection's pushes, including dropped and refused ones."""
    staleness: int
    """Updates of others since the pull that the push was computed from (the maximum over shards)."""
    dropped: bool
    """True if all or part of the push is lost: servers dropped it as too stale, or its session ended
    before all servers had answered."""
    why: str = ""
    """Reason of the drop; empty if the push was not dropped."""


class PushRejectedError(UserError):
    """Servers refused a push; the message names the server and the reason."""


class ParameterClient:
    """A connection to parameter servers; use in a ``with`` statement, or `close`.

    Raises MachineError if no server answers at the address, or if it refuses the token.
    """

    def __init__(
        self,
        host: str,
        port: int,
        token: Token,
        *,
        encrypt: bool = True,
        ports: Sequence[int] = (),
    ) -> None:
        self._address_text = f"{host}:{port}"
        self._lock, self._call_lock = threading.Condition(), threading.Lock()
        self._terms: RunTerms | None = None
        self._machine: ClientSession | None = None
        self._error: CotswoldError | None = None
        self._is_closing = False
        self._process = OwnerProcess(self._address_text)
        self._point: Array = np.empty(0)
        self._servers: frozenset[str] = frozenset()
        self._shards: dict[int, m.Shard] = {}
        self._versions: dict[int, int] = {}
        """Versions that the next push is computed from: those of the last pull, plus own pushes since."""
        self._is_stale = False
        """True if a push since the last pull was too stale; all later ones would be, too."""
        self._lost_server: tuple[float, str] | None = None
        """Time at which a server was lost, and the error's text."""
        self._end_reason = ""
        """Reason why the servers end."""
        self._outbox: deque[Sequence[m.Send]] = deque()
        self._wake_reader, self._wake_writer = wake_pipe()
        found = address_of(host, port)
        name = f"client-{re.sub('[^A-Za-z0-9-]', '-', socket.gethostname())[:30]}-{os.getpid()}"
        self._name = f"{name}-{secrets.token_hex(3)}"
        self._endpoint = Endpoint(token, self._name, host=local_address(found), ports=ports, encrypt=encrypt)
        self._messenger = Messenger(self._endpoint)
        self._endpoint.watch(self._wake_reader)
        self._endpoint.connect(m.COORDINATOR, str(Address.of_port(found, port)))
        self._thread = threading.Thread(target=self._run, name="cotswold-client", daemon=True)
        self._thread.start()
        try:
            self._wait(lambda: self._terms is not None and self._is_joined, _START_SECONDS)
        except BaseException:
            self.close()
            raise

    @property
    def terms(self) -> RunTerms:
        """The terms of the service."""
        assert self._terms is not None, "the constructor waits for it"
        return self._terms

    @property
    def has_pulled(self) -> bool:
        """True if parameters were pulled that a push can be computed from."""
        return bool(self._versions)

    def pull(self) -> Array:
        """Return the newest parameters ``(size,)``, valid until the next pull.

        Raises MachineError if the servers are lost, UserError in a fork of the connected process.
        """
        self._process.require_current()
        with self._exclusive(), self._lock:
            self._request(lambda machine: machine.pull(time.monotonic()))
            self._wait(lambda: self._machine is not None and not self._machine.is_pulling)
            assert self._machine is not None, "the client is connected"
            newer, self._machine.newer = self._machine.newer, []
            for pulled in newer:
                for number, buffer in zip(pulled.shards, pulled.buffers, strict=True):
                    assert isinstance(buffer, bytes | bytearray | memoryview)
                    shard = self._shards[number]
                    self._point[shard.start : shard.stop] = np.frombuffer(buffer, self._point.dtype)
            self._versions, self._is_stale = dict(self._machine.versions), False
        return self._point

    def push(self, vector: Array, samples: int) -> PushResult:
        """Push a gradient or a delta ``(size,)``, computed from the last pull and ``samples`` samples;
        return once every server has applied it.

        Raises PushRejectedError if a server refuses it, or if the previous push was too stale and nothing was
        pulled since. Raises MachineError if the servers are lost, UserError in a fork of the connected
        process.
        """
        self._process.require_current()
        if self._is_stale:
            raise PushRejectedError(
                "the previous push was dropped as too stale, and this one would be, too; pull first"
            )
        whole = np.array(vector, self.terms.dtype)  # a copy, because it may be resent
        with self._exclusive(), self._lock:
            base = self._versions
            self._request(lambda machine: machine.push(self._updates(whole), base, samples, time.monotonic()))
            self._wait(lambda: self._machine is not None and not self._machine.is_pushing)
            assert self._machine is not None, "the client is connected"
            outcome, self._machine.outcome = self._machine.outcome, None
            assert outcome is not None, "the outcome has arrived"
            own = [number for applied in outcome.applied.values() for number in applied.shards]
            self._versions = base | {number: base[number] + 1 for number in own}
            self._is_stale = any(map(_is_stale, outcome.refused.values()))
        return _push_result(outcome, base)

    def close(self) -> None:
        """Disconnect; no effect in a fork of the connected process."""
        if not self._process.is_current:
            return
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
            self._enqueue(())
        self._thread.join()

    def abandon(self) -> None:
        """Disconnect soon, without waiting or locking: a garbage collector may call it in any thread."""
        self._is_closing = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the program's thread ---

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Raise UserError while another thread of the program pulls or pushes."""
        if not self._call_lock.acquire(blocking=False):
            raise UserError(
                f"another thread pulls or pushes on this connection to {self._address_text}; use one "
                "connection per thread"
            )
        try:
            yield
        finally:
            self._call_lock.release()

    def _request(self, request: Callable[[ClientSession], Sequence[m.Send]]) -> None:
        """Have the messaging thread send a request; the lock is held, so that thread waits."""
        self._raise_error()
        assert self._machine is not None, "the client is connected"
        sends = request(self._machine)
        self._enqueue(sends)

    def _enqueue(self, sends: Sequence[m.Send]) -> None:
        """Have the messaging thread send messages; the lock is held."""
        if not self._thread.is_alive():
            return
        self._outbox.append(sends)
        with suppress(BlockingIOError):  # the pipe is full: enough wake-ups are pending
            os.write(self._wake_writer, b"!")

    def _wait(self, holds: Callable[[], object], seconds: float | None = None) -> None:
        with self._lock:
            in_time = self._lock.wait_for(lambda: self._error is not None or holds(), seconds)
            self._raise_error()
        if not in_time:
            raise MachineError(
                f"the servers at {self._address_text} do not answer; check that they are running"
            )

    def _raise_error(self) -> None:
        if self._is_closing:
            raise UserError(f"the connection to {self._address_text} is closed; connect again")
        if self._error is not None:
            raise self._error

    def _updates(self, whole: Array) -> dict[str, ServerUpdate]:
        own: dict[str, list[m.Shard]] = {}
        for shard in self._shards.values():
            own.setdefault(shard.server, []).append(shard)
        return {
            server: ServerUpdate(
                self.terms.kind,
                tuple(shard.number for shard in shards),
                (),
                tuple(raw(whole[shard.start : shard.stop]) for shard in shards),
            )
            for server, shards in own.items()
        }

    # --- the messaging thread ---

    @property
    def _is_joined(self) -> bool:
        return self._machine is not None and self._machine.state is ClientState.JOINED

    def _run(self) -> None:
        try:
            self._messenger.send(m.COORDINATOR, ConnectRequest())
            while not self._is_closing and self._error is None:
                self._step()
            self._disconnect()
        except CotswoldError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(MachineError(f"the connection to {self._address_text} broke: {error!r}"))
        finally:
            self._endpoint.close()
            with self._lock:
                self._fail(MachineError(f"the connection to {self._address_text} is closed"))
                os.close(self._wake_reader)
                os.close(self._wake_writer)
                self._wake_writer = -1

    def _step(self) -> None:
        match self._messenger.receive(_TICK_SECONDS):
            case Received(sender, message):
                self._on_message(sender, message)
            case Ready():
                self._flush_outbox()
            case Lost(peer) as lost if peer == m.COORDINATOR:
                raise MachineError(self._lost_text(lost))
            case Lost(peer) as lost if peer in self._servers:
                self._lost_server = self._lost_server or (time.monotonic(), self._lost_text(lost))
            case _:
                pass
        now = time.monotonic()
        if self._lost_server is not None and now - self._lost_server[0] > _SERVER_LOST_SECONDS:
            raise MachineError(self._lost_server[1])
        if self._machine is not None:
            with self._lock:
                sends = self._machine.tick(now)
            self._deliver(sends)

    def _flush_outbox(self) -> None:
        """Send what the program's thread has queued."""
        with suppress(BlockingIOError):
            os.read(self._wake_reader, 4096)
        while self._outbox:
            self._deliver(self._outbox.popleft())

    def _on_message(self, sender: str, message: object) -> None:
        if isinstance(message, RunTerms) and self._terms is None and sender == m.COORDINATOR:
            size = sum(rows * columns for _, rows, columns in message.layout)
            join = m.Join(self._name, 0, self._endpoint.address, ANY, size)
            with self._lock:
                self._terms, self._machine = message, ClientSession(join)
                self._point = np.zeros(size, message.dtype)
        if isinstance(message, Goodbye) and sender == m.COORDINATOR:
            self._end_reason = f": {message.why}"
        if self._machine is None or not isinstance(message, m.ToReplica):
            return
        if isinstance(message, m.SessionOpened):
            for name, address in message.servers:
                self._endpoint.connect(name, address)
            self._servers = frozenset(dict(message.servers))
            self._shards = {shard.number: shard for shard in message.shards}
        with self._lock:
            sends = self._machine.receive(sender, message, time.monotonic())
            if self._machine.is_gone:
                self._error = MachineError(
                    f"the servers at {self._address_text} have ended{self._end_reason}"
                )
            self._lock.notify_all()
        self._deliver(sends)

    def _lost_text(self, lost: Lost) -> str:
        who = self._address_text if lost.peer == m.COORDINATOR else f"{lost.peer} of {self._address_text}"
        if lost.by_token:
            return f"{who} refused the token of this process; use the token of the servers"
        if self._terms is None:
            return f"{who} cannot be reached: {lost.why}; check that servers run there"
        return f"{who} is lost: {lost.why}; connect again when it runs"

    def _fail(self, error: CotswoldError) -> None:
        with self._lock:
            self._error = self._error or error
            self._lock.notify_all()

    def _disconnect(self) -> None:
        machine = self._machine
        if machine is None or machine.is_gone:
            return
        with self._lock:
            sends = machine.leave("it closed its connection")
        self._deliver(sends)
        deadline = time.monotonic() + _LEAVE_SECONDS
        while not machine.is_gone and time.monotonic() < deadline:
            match self._messenger.receive(_TICK_SECONDS):
                case Received(sender, message) if isinstance(message, m.ToReplica):
                    machine.receive(sender, message, time.monotonic())
                case Lost(peer, _) if peer == m.COORDINATOR:
                    return
                case _:
                    pass

    def _deliver(self, sends: Sequence[m.Send]) -> None:
        for each in sends:
            self._messenger.send(each.to, each.message)


def _is_stale(refusal: m.UpdateRefused) -> bool:
    return refusal.code == "stale"


def _push_result(outcome: PushOutcome, base: dict[int, int]) -> PushResult:
    mistakes = {server: each.reason for server, each in outcome.refused.items() if not _is_stale(each)}
    if mistakes:
        server, why = next(iter(mistakes.items()))
        some = "; other servers have applied their part" if outcome.applied else ""
        raise PushRejectedError(f"{server} refused push {outcome.number}: {why}{some}")
    ages = [
        version - base[number] - 1
        for applied in outcome.applied.values()
        for number, version in zip(applied.shards, applied.versions, strict=True)
    ]
    why = _LOST_REASON if outcome.lost else next((each.reason for each in outcome.refused.values()), "")
    return PushResult(outcome.number, max(ages, default=0), bool(why), why)
