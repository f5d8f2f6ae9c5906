"""Batches from data servers for a reader of this process.

Knows: endpoints, one messaging thread. Does not know: the choice of servers
(`dataservice.core.request_scheduler`), tensors (`dataservice.runtime.batch_tensors`), the order of samples.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

import numpy as np

from cotswold import wire as m
from cotswold.data.loading.batching import Batch, BatchRequest, coalesce
from cotswold.data.loading.order import Rows
from cotswold.data.service.store import DatasetInfo, DatasetView
from cotswold.dataservice.core.epoch_pass import Drawing, EpochPass
from cotswold.dataservice.core.request_scheduler import Asking
from cotswold.dataservice.core.trainer import BEATS, Trainer
from cotswold.dataservice.runtime.batch_tensors import batches_of, window_bytes
from cotswold.errors import RESUME, CotswoldError, MachineError, UserError
from cotswold.host import Token, wake_pipe
from cotswold.host.owner_process import OwnerProcess
from cotswold.host.token import VARIABLE
from cotswold.processes.endpoint_settings import own_host
from cotswold.transport import Endpoint, Lost, Ready
from cotswold.transport.address import Address
from cotswold.transport.host_names import address_of
from cotswold.wire.messenger import Letter, Post

_TICK_SECONDS = 0.05
_START_SECONDS = 120.0
"""Seconds to wait for the first data server, which may prepare a store first."""
AHEAD_BYTES = 256 << 20
"""Bytes of all batches that are requested ahead, at most; two batches are always allowed."""
LENT_BYTES = 128 << 20
"""Bytes of batches held by the loop that stay in servers' memory; further ones are copied. A server makes
no batches for a client that holds all of its memory."""
_LEAVE_SECONDS = 2.0
"""Seconds to wait until the head knows which batches a loop has had."""
_TOKEN = f"use the token of the pool ({VARIABLE})"
_HEARD = (m.Roster, m.Dealt, m.Supplied, m.Unsupplied, m.Pending, m.Dismiss)


class DataClient:
    """One trainer's connection to a pool; use in a ``with`` statement, or `close`.

    One thread of the program may use it. A second thread of the client handles messages and requests batches
    ahead.
    """

    def __init__(
        self,
        token: Token,
        address: str | None = None,
        *,
        store: str = "",
        host: str | None = None,
        encrypt: bool = True,
        ports: Sequence[int] = (),
        asking: Asking | None = None,
        where: str = "",
        start_seconds: float = _START_SECONDS,
        again: str = RESUME,
    ) -> None:
        """Connect to a pool.

        Args:
            token: Token of the pool.
            address: Address of the pool's head; None if the head calls this client (`own_address`).
            store: Identity of the wanted store; empty for any.
            host: Address of this machine for other hosts.
            encrypt: Encrypt samples between hosts.
            ports: Ports to choose from; empty for any.
            asking: Settings of requests.
            where: Name of the pool in errors.
            start_seconds: Seconds to wait for the first data server.
            again: Remedy in errors.
        """
        self._again = again
        self._where = where or "the pool of data servers"
        self._start_seconds = start_seconds
        self._lock = threading.Condition()
        self._error: CotswoldError | None = None
        self._is_closing = self._is_stopped = False
        self._process = OwnerProcess(self._where)
        self._passes = 0
        """Number of passes that were started; the last may be active."""
        self._asked: deque[Sequence[m.Send]] = deque()
        self._connected: dict[str, str] = {}
        """Connected servers that were called."""
        self._sample_bytes = 0
        """Bytes of a sample of the wanted view."""
        self._lent, self._returned = 0, deque[int]()
        """Bytes of servers' memory that the loop holds, and those that it has released."""
        name = f"trainer-{re.sub('[^A-Za-z0-9-]', '-', socket.gethostname())[:30]}-{os.getpid()}"
        self.name = f"{name}-{secrets.token_hex(3)}"
        self._ticked = float("-inf")
        with ExitStack() as opened:
            self._endpoint = Endpoint(token, self.name, host=host, ports=ports, encrypt=encrypt)
            opened.callback(self._endpoint.close, 0.0)
            self._post = Post(self._endpoint)
            self._woken, self._wake = wake_pipe()
            opened.callback(self._close_pipe)
            self._endpoint.watch(self._woken)
            self._machine = Trainer(
                self.name, self._endpoint.address, store, asking or Asking(), time.monotonic()
            )
            if address is not None:
                self._endpoint.connect(m.POOL, address)
            self._thread = threading.Thread(target=self._run, name="cotswold-data", daemon=True)
            self._thread.start()
            opened.pop_all()

    @property
    def own_address(self) -> str:
        """Address for the head of a pool to call."""
        return self._endpoint.address

    def terms(self) -> DatasetInfo:
        """Return the pool's terms; wait until a server has sent them. Raises MachineError if none does."""
        self._process.require_current()
        with self._lock:
            self._is_stopped = False
        self._is_there()
        return DatasetInfo.parsed(self._machine.terms)

    def batches(
        self, view: DatasetView, wanted: Iterator[BatchRequest], sample_bytes: int
    ) -> Generator[Batch, None, None]:
        """Yield the wanted batches in order, requested ahead; one such iterator at a time.

        Raises MachineError if no server makes them.
        """
        # start now, so that a `stop` before the first batch takes effect
        return self._batches(self._begin_pass(), view, wanted, sample_bytes)

    def _batches(
        self, number: int, view: DatasetView, wanted: Iterator[BatchRequest], sample_bytes: int
    ) -> Generator[Batch, None, None]:
        self._check_is_on(number)
        text, ended, asked = str(view), False, 0
        asking = self._machine.requests.asking
        # results may depend on the other samples of the batch
        most = 1 if view.names_own else asking.together
        requests = coalesce(wanted, sample_bytes, asking.together_bytes, most)
        self._sample_bytes = sample_bytes
        if not self._is_there():
            return
        try:
            while True:
                if 2 * asked <= self._window(sample_bytes):  # half of it per wake-up of the messaging thread
                    while not ended and asked < self._window(sample_bytes):
                        each = next(requests, None)
                        if each is None:
                            ended = True
                        else:
                            self._ask(text, each)
                            asked += 1
                if ended and not asked:
                    return
                found = self._take()
                if found is None:
                    return
                asked -= 1
                for batch in self._batches_of(found):
                    yield batch
                    self._check_is_on(number)
        finally:
            if self._process.is_current:
                with self._lock:
                    if not self._is_closing and number == self._passes:
                        self._tell(self._machine.requests.cancel())

    def drawn(
        self, view: DatasetView, drawing: Drawing, epoch: int, rows_of: Callable[[int], Rows]
    ) -> Generator[Batch, None, None]:
        """Yield the batches of an epoch that is shared with other trainers; -1 for the current one. It ends
        once the epoch is over. One such iterator at a time, and no `batches` at the same time.

        ``rows_of`` returns the rows of all samples of an epoch, in the order of assignment. Raises
        MachineError if no server makes batches, or the pool rejects this trainer.
        """
        return self._drawn(self._begin_pass(), view, drawing, epoch, rows_of)

    def _drawn(
        self, number: int, view: DatasetView, drawing: Drawing, epoch: int, rows_of: Callable[[int], Rows]
    ) -> Generator[Batch, None, None]:
        self._check_is_on(number)
        if not self._is_there():
            return
        text, self._sample_bytes = str(view), window_bytes(DatasetInfo.parsed(self._machine.terms).shape)
        with self._lock:
            self._tell(self._machine.draw(drawing, epoch, time.monotonic()))
            drawn = self._machine.on
            assert drawn is not None, "the pass was just started"
        try:
            with self._lock:
                self._wait(lambda: self._is_stopped or drawn.epoch >= 0)
            if self._is_stopped:
                return
            rows, first = rows_of(drawn.epoch), drawn.epoch * drawing.samples

            def ask_of(number: int, at: int, batch: tuple[int, int]) -> m.Ask:
                own = np.ascontiguousarray(rows[batch[0] - first : batch[1] - first], np.int64)
                return m.Ask(number, text, at, len(own), (own.tobytes(),))

            with self._lock:
                self._tell(self._machine.begin(ask_of, time.monotonic()))
            while True:
                found = self._next_drawn(drawn)
                if found is None:
                    return
                yield self._batches_of(found)[0]
                self._check_is_on(number)
        finally:
            if self._process.is_current:
                self._leave_epoch(number, drawn)

    def _leave_epoch(self, number: int, drawn: EpochPass) -> None:
        """Report to the head which batches of an epoch this loop has had, unless another pass has started."""
        with self._lock:
            if not self._is_closing and number == self._passes:
                self._tell(self._machine.leave_epoch(time.monotonic()))
                self._lock.wait_for(lambda: drawn.is_done or self._error is not None, _LEAVE_SECONDS)

    def ask(self, view: DatasetView, wanted: BatchRequest, sample_bytes: int) -> int | None:
        """Request a batch in advance, if there is space; return its number for `have` or `drop`. Do not
        use `batches` or `drawn` at the same time. Raises MachineError if no server makes it."""
        if not self._is_there() or len(self._machine.requests.numbers) >= self._window(sample_bytes):
            return None
        self._sample_bytes = sample_bytes
        return self._ask(str(view), BatchRequest(wanted.epoch, wanted.rows[None]))

    def have(self, number: int) -> Batch:
        """Return a requested batch, once it is ready; in any order. Raises MachineError if no server makes
        it."""
        self._process.require_current()
        requests, began = self._machine.requests, time.perf_counter()
        with self._lock:
            self._wait(lambda: requests.made(number))
            found = requests.pick(number)
            self._machine.handed += found.shape[-1]
            self._machine.waited += time.perf_counter() - began
        return self._batches_of(found)[0]

    def drop(self, numbers: Sequence[int]) -> None:
        """Cancel these requests."""
        self._process.require_current()
        with self._lock:
            self._tell(self._machine.requests.cancel(numbers))

    @property
    def epoch(self) -> int | None:
        """The shared epoch that is active; None if there is none."""
        on = self._machine.on
        return None if on is None or on.epoch < 0 else on.epoch

    @property
    def waited(self) -> float:
        """Seconds for which the loop has waited for batches."""
        return self._machine.waited

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
            self._tell(())
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

    def _begin_pass(self) -> int:
        """Start a pass and return its number; a pass that was active ends."""
        self._process.require_current()
        with self._lock:
            self._is_stopped = False
            self._passes += 1
            if not self._is_closing:
                self._tell((*self._machine.leave_epoch(time.monotonic()), *self._machine.requests.cancel()))
            return self._passes

    def _check_is_on(self, number: int) -> None:
        self._process.require_current()
        if number != self._passes:
            raise UserError(
                "another pass over these batches has started and ends this one; continue with that one, or "
                "use one connection per pass"
            )

    def _batches_of(self, supplied: m.Supplied) -> list[Batch]:
        """The tensors of a message."""
        while self._returned:
            self._lent -= self._returned.popleft()
        return batches_of(supplied, self._sample_bytes, self._is_lent)

    def _is_lent(self, array: np.ndarray) -> bool:
        """True if the loop may hold an array in servers' memory; it is counted until it is released."""
        if self._lent + array.nbytes > LENT_BYTES:
            return False
        self._lent += array.nbytes
        weakref.finalize(array, self._returned.append, array.nbytes).atexit = False
        return True

    def _is_there(self) -> bool:
        """Wait until a server is connected; return False if `stop` was called."""
        self._process.require_current()
        with self._lock:
            if not self._wait(lambda: self._is_stopped or self._machine.is_here, self._start_seconds):
                raise MachineError(
                    f"{self._where} has no data server after {self._start_seconds:g} s; check "
                    "that they are running"
                )
            return not self._is_stopped

    def _window(self, sample_bytes: int) -> int:
        """Number of requests that may be outstanding, or ready and not delivered."""
        most = max(2, AHEAD_BYTES // max(1, sample_bytes * self._largest))
        return min(self._machine.requests.asking.window, most)

    _largest = 1
    """Samples of the largest request so far."""

    def _ask(self, view: str, wanted: BatchRequest) -> int:
        """Request batches of rows (batch, image); return the request's number."""
        rows = np.ascontiguousarray(wanted.rows, np.int64)
        self._largest = max(self._largest, rows.size)
        with self._lock:
            requests = self._machine.requests
            ask = m.Ask(requests.fresh(), view, wanted.epoch, rows.size, (rows.tobytes(),), len(rows))
            self._tell(requests.ask(ask, time.monotonic()))
        return ask.number

    def _next_drawn(self, drawn: EpochPass) -> m.Supplied | None:
        """The next batch of a pass; None if none is left."""

        def next_of() -> m.Supplied | None:
            found, sends = drawn.next(self._machine.pool, time.monotonic())
            if sends:
                self._tell(sends)
            return found

        return self._taken(next_of, lambda: drawn.is_over)

    def _take(self) -> m.Supplied | None:
        """The next batch; None if `stop` was called."""
        return self._taken(self._machine.requests.take, lambda: False)

    def _taken(self, take: Callable[[], m.Supplied | None], ends: Callable[[], bool]) -> m.Supplied | None:
        """The next batch; None if `stop` was called, or none is left."""
        found: m.Supplied | None = None

        def came() -> bool:
            nonlocal found
            found = take()
            return found is not None

        began = time.perf_counter()
        with self._lock:
            self._wait(lambda: self._is_stopped or found is not None or came() or ends())
            if found is not None:
                self._machine.handed += found.shape[-1] * found.batches
                self._machine.waited += time.perf_counter() - began
        return found

    def _tell(self, sends: Sequence[m.Send]) -> None:
        """Have the messaging thread send messages; the lock is held."""
        if self._wake >= 0:
            if not self._asked:  # otherwise it was woken, and has not run yet
                with suppress(BlockingIOError):
                    os.write(self._wake, b"!")
            self._asked.append(sends)

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
            self._fail(MachineError(f"the connection to {self._where} broke: {error!r}"))
        finally:
            self._endpoint.close()
            with self._lock:
                self._fail(MachineError(f"the connection to {self._where} is closed"))
                self._close_pipe()

    def _close_pipe(self) -> None:
        os.close(self._woken)
        os.close(self._wake)
        self._wake = -1

    def _step(self) -> None:
        event = self._post.receive(_TICK_SECONDS)
        now = time.monotonic()
        with self._lock:
            sends: list[m.Send] = []
            match event:
                case Letter(sender, message) if isinstance(message, _HEARD):
                    sends += self._machine.receive(sender, message, now)
                    self._lock.notify_all()
                case Ready():
                    with suppress(BlockingIOError):
                        os.read(self._woken, 4096)
                case Lost(peer, why):
                    if peer == m.POOL and "token" in why:
                        self._fail(UserError(f"{self._where} refused the token of this process; {_TOKEN}"))
                    sends += self._machine.lost(peer, why, now)
                case _:
                    pass
            del event
            addresses = dict(self._machine.addresses)
            trouble = ""
            if now - self._ticked >= _TICK_SECONDS:
                self._ticked = now
                sends += self._machine.tick(now)
                trouble = self._machine.trouble(now)
            error = self._error_of(trouble) if trouble else None
            while self._asked:
                sends += self._asked.popleft()
        if addresses != self._connected:
            for name, address in addresses.items():
                self._endpoint.connect(name, address)
            self._connected = addresses
        self._deliver(sends)
        if error is not None:
            self._fail(error)

    def _error_of(self, trouble: str) -> CotswoldError:
        """The error, with a remedy."""
        if self._machine.is_stranger:
            return UserError(f"{trouble}; use the recipe, or the store, of {self._where}")
        helps = "fix that" if self._machine.requests.refusal else f"check {self._where}"
        again = f", and {self._again}" if self._machine.pool else ""
        return MachineError(f"{trouble}; {helps}{again}")

    def _fail(self, error: CotswoldError) -> None:
        with self._lock:
            self._error = self._error or error
            self._lock.notify_all()

    def _deliver(self, sends: Iterable[m.Send]) -> None:
        for each in sends:
            self._post.send(each.to, each.message)


def client_at(
    host: str,
    port: int,
    token: Token,
    asking: Asking,
    *,
    store: str = "",
    encrypt: bool = True,
    ports: Sequence[int] = (),
    start_seconds: float = _START_SECONDS,
    again: str = RESUME,
) -> DataClient:
    """Connect to the pool that listens at ``host`` and ``port``; other arguments as for `DataClient`.
    Raises UserError if the name cannot be resolved."""
    found = address_of(host, port)
    return DataClient(
        token,
        str(Address.at_port(found, port)),
        store=store,
        host=own_host(found),
        encrypt=encrypt,
        ports=ports,
        asking=asking,
        where=f"the data servers at {host}:{port}",
        start_seconds=start_seconds,
        again=again,
    )


def asking_of(window: int, lonely_seconds: float) -> Asking:
    """Settings of requests; raise UserError for invalid values."""
    try:
        retry_seconds = min(Asking.retry_seconds, lonely_seconds / BEATS)
        return Asking(window=window, retry_seconds=retry_seconds, lonely_seconds=lonely_seconds)
    except ValueError as error:
        raise UserError(str(error)) from error
