"""One trainer's connection to a pool, and the thread that handles its messages.

Knows: endpoints, the messaging thread, errors with their remedy. Does not know: batches, the order of
samples.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

from cotswold import wire as m
from cotswold.dataservice.core.request_scheduler import RequestSettings
from cotswold.dataservice.core.trainer import BatchRequester
from cotswold.errors import RESUME, CotswoldError, MachineError, ResumableError, UserError
from cotswold.host import Token, wake_pipe
from cotswold.host.owner_process import OwnerProcess
from cotswold.host.token import VARIABLE
from cotswold.transport import Endpoint, Lost, Ready
from cotswold.wire.messenger import Messenger, Received

_TICK_SECONDS = 0.05
START_SECONDS = 120.0
"""Seconds to wait for the first data server, which may prepare a store first."""
_TOKEN = f"use the token of the pool ({VARIABLE})"
_RECEIVED = (m.PoolMembers, m.EpochAssignment, m.BatchReply, m.BatchRejected, m.BatchPending, m.Shutdown)


class PoolConnection:
    """The connection; use in a ``with`` statement, or `close`."""

    def __init__(
        self,
        token: Token,
        address: str | None = None,
        *,
        store: str = "",
        host: str | None = None,
        encrypt: bool = True,
        ports: Sequence[int] = (),
        request_settings: RequestSettings | None = None,
        pool_text: str = "",
        start_seconds: float = START_SECONDS,
        again: str | None = None,
    ) -> None:
        """Connect to a pool.

        Args:
            token: Token of the pool.
            address: Address of the pool's head; None if the head calls this client (`address`).
            store: Identity of the wanted store; empty for any.
            host: Address of this machine for other hosts.
            encrypt: Encrypt samples between hosts.
            ports: Ports to choose from; empty for any.
            request_settings: Settings of requests.
            pool_text: Name of the pool in errors.
            start_seconds: Seconds to wait for the first data server.
            again: Remedy in errors [resume the run].
        """
        self._remedy = again
        self._pool_text = pool_text or "the pool of data servers"
        self._start_seconds = start_seconds
        self._lock = threading.Condition()
        self._error: CotswoldError | None = None
        self._is_closing = self._is_stopped = False
        self._process = OwnerProcess(self._pool_text)
        self._outbox: deque[Sequence[m.Send]] = deque()
        self._connected: dict[str, str] = {}
        """Connected servers that were called."""
        name = f"trainer-{re.sub('[^A-Za-z0-9-]', '-', socket.gethostname())[:30]}-{os.getpid()}"
        self.name = f"{name}-{secrets.token_hex(3)}"
        self._ticked = float("-inf")
        with ExitStack() as opened:
            self._endpoint = Endpoint(token, self.name, host=host, ports=ports, encrypt=encrypt)
            opened.callback(self._endpoint.close, 0.0)
            self._messenger = Messenger(self._endpoint)
            self._wake_reader, self._wake_writer = wake_pipe()
            opened.callback(self._close_pipe)
            self._endpoint.watch(self._wake_reader)
            self._machine = BatchRequester(
                self.name,
                self._endpoint.address,
                store,
                request_settings or RequestSettings(),
                time.monotonic(),
            )
            if address is not None:
                self._endpoint.connect(m.POOL, address)
            self._thread = threading.Thread(target=self._run, name="cotswold-data", daemon=True)
            self._thread.start()
            opened.pop_all()

    @property
    def address(self) -> str:
        """Address for the head of a pool to call."""
        return self._endpoint.address

    def stop(self) -> None:
        """End an iterator that is waiting; the next one is not affected."""
        with self._lock:
            self._is_stopped = True
            self._lock.notify_all()

    def close(self) -> None:
        """Leave the pool; no effect in a fork of the connected process."""
        if not self._process.is_current:
            return
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
            self._enqueue(())
            self._lock.notify_all()
        if threading.current_thread() is not self._thread:  # a garbage collector may call this in that thread
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the program's thread ---

    def _wait_joined(self) -> bool:
        """Wait until a server is connected; return False if `stop` was called."""
        self._process.require_current()
        with self._lock:
            if not self._wait(lambda: self._is_stopped or self._machine.is_joined, self._start_seconds):
                raise MachineError(
                    f"{self._pool_text} has no data server after {self._start_seconds:g} s; check "
                    "that they are running"
                )
            return not self._is_stopped

    def _enqueue(self, sends: Sequence[m.Send]) -> None:
        """Have the messaging thread send messages; the lock is held."""
        if self._wake_writer >= 0:
            if not self._outbox:  # otherwise it was woken, and has not run yet
                with suppress(BlockingIOError):
                    os.write(self._wake_writer, b"!")
            self._outbox.append(sends)

    def _wait(self, holds: Callable[[], object], seconds: float | None = None) -> bool:
        """Wait with the lock held until a condition holds; return False after ``seconds``."""
        in_time = self._lock.wait_for(lambda: self._error is not None or holds(), seconds)
        if self._error is not None and not holds():
            raise self._error
        return bool(in_time)

    # --- the messaging thread ---

    def _run(self) -> None:
        try:
            while not self._is_closing and self._error is None:
                self._step()
            if not self._machine.error:
                with self._lock:
                    sends = self._machine.leave()
                self._deliver(sends)
        except CotswoldError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(MachineError(f"the connection to {self._pool_text} broke: {error!r}"))
        finally:
            self._endpoint.close()
            with self._lock:
                self._fail(MachineError(f"the connection to {self._pool_text} is closed"))
                self._close_pipe()

    def _close_pipe(self) -> None:
        os.close(self._wake_reader)
        os.close(self._wake_writer)
        self._wake_writer = -1

    def _step(self) -> None:
        event = self._messenger.receive(_TICK_SECONDS)
        now = time.monotonic()
        with self._lock:
            sends: list[m.Send] = []
            match event:
                case Received(sender, message) if isinstance(message, _RECEIVED):
                    sends += self._machine.receive(sender, message, now)
                    self._lock.notify_all()
                case Ready():
                    with suppress(BlockingIOError):
                        os.read(self._wake_reader, 4096)
                case Lost(peer, why):
                    if peer == m.POOL and event.by_token:
                        self._fail(
                            UserError(f"{self._pool_text} refused the token of this process; {_TOKEN}")
                        )
                    sends += self._machine.on_lost(peer, why, now)
                case _:
                    pass
            del event
            addresses = dict(self._machine.addresses)
            trouble = ""
            if now - self._ticked >= _TICK_SECONDS:
                self._ticked = now
                sends += self._machine.tick(now)
                trouble = self._machine.failure(now)
            error = self._failure_error(trouble) if trouble else None
            while self._outbox:
                sends += self._outbox.popleft()
        if addresses != self._connected:
            for name, address in addresses.items():
                self._endpoint.connect(name, address)
            self._connected = addresses
        self._deliver(sends)
        if error is not None:
            self._fail(error)

    def _failure_error(self, failure: str) -> CotswoldError:
        """The error, with a remedy."""
        if self._machine.wants_other_store:
            return UserError(f"{failure}; use the recipe, or the store, of {self._pool_text}")
        helps = "fix that" if self._machine.requests.refusal else f"check {self._pool_text}"
        if not self._machine.pool:
            return MachineError(failure, remedy=helps)
        if self._remedy is not None:
            return MachineError(failure, remedy=f"{helps}, and {self._remedy}")
        return ResumableError(failure, remedy=f"{helps}, and {RESUME}")

    def _fail(self, error: CotswoldError) -> None:
        with self._lock:
            self._error = self._error or error
            self._lock.notify_all()

    def _deliver(self, sends: Iterable[m.Send]) -> None:
        for each in sends:
            self._messenger.send(each.to, each.message)
