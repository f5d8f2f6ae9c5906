"""Batches that data servers make, for a reader of this process.

Knows: endpoints, one thread that carries messages. Does not know: who asks which server when
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
from cotswold.data.loading.batching import Batch, Wanted, together
from cotswold.data.loading.order import Rows
from cotswold.data.service.store import Terms, View
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
"""For so long it is waited until a data server is there: it may read a store first."""
AHEAD_BYTES = 256 << 20
"""Batches that are asked ahead have no more bytes together, but for two of them."""
LENT_BYTES = 128 << 20
"""Of batches that its loop keeps, a client leaves so much in the memory of servers, and copies the rest: they
make nothing more for one that keeps all that they lend."""
_LEAVE_SECONDS = 2.0
"""For so long it is waited until the head knows what a loop has had."""
_TOKEN = f"give the one that the pool was started with ({VARIABLE})"
_HEARD = (m.Roster, m.Dealt, m.Supplied, m.Unsupplied, m.Pending, m.Dismiss)


class DataClient:
    """One trainer's connection to a pool; use in a ``with`` statement, or `close`.

    One thread of the program's uses it; another one, its own, carries messages and asks ahead.
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
        """``address``: of the pool's head; without one the head calls (`own_address`). ``store``: the
        identity of the store that is wanted; ``host``: the address of this machine at which other hosts
        reach it, at one of ``ports`` (any without); ``where``: what errors call the pool, ``again``: how
        one goes on after them."""
        self._again = again
        self._where = where or "the pool of data servers"
        self._start_seconds = start_seconds
        self._lock = threading.Condition()
        self._error: CotswoldError | None = None
        self._is_closing = self._is_stopped = False
        self._process = OwnerProcess(self._where)
        self._passes = 0
        """How many were begun; the last one may go on."""
        self._asked: deque[Sequence[m.Send]] = deque()
        self._connected: dict[str, str] = {}
        """Servers that were called, of those that are there."""
        self._sample_bytes = 0
        """Of a sample of the view that is wanted."""
        self._lent, self._returned = 0, deque[int]()
        """Bytes of servers' memory that the loop keeps, and those of them that it has let go."""
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
        """Where the head of a pool calls."""
        return self._endpoint.address

    def terms(self) -> Terms:
        """What is served; waits until a server has said so. Raises MachineError where none does."""
        self._process.require_current()
        with self._lock:
            self._is_stopped = False
        self._is_there()
        return Terms.parsed(self._machine.terms)

    def batches(
        self, view: View, wanted: Iterator[Wanted], sample_bytes: int
    ) -> Generator[Batch, None, None]:
        """What is wanted, in order, asked ahead; one such iterator at a time.

        Raises MachineError where nobody makes it.
        """
        # now, so that a `stop` is heard that comes before the first batch is asked for
        return self._batches(self._begin_pass(), view, wanted, sample_bytes)

    def _batches(
        self, number: int, view: View, wanted: Iterator[Wanted], sample_bytes: int
    ) -> Generator[Batch, None, None]:
        self._check_is_on(number)
        text, ended, asked = str(view), False, 0
        asking = self._machine.requests.asking
        most = 1 if view.names_own else asking.together  # which may depend on what else is in the batch
        requests = together(wanted, sample_bytes, asking.together_bytes, most)
        self._sample_bytes = sample_bytes
        if not self._is_there():
            return
        try:
            while True:
                if 2 * asked <= self._window(sample_bytes):  # half of it for one wake of the other thread
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
        self, view: View, drawing: Drawing, epoch: int, rows_of: Callable[[int], Rows]
    ) -> Generator[Batch, None, None]:
        """Batches of an epoch that is drawn together with others; -1 for the one that is on. One such
        iterator at a time, and none of `batches` beside it; it ends once the epoch is over.

        ``rows_of``: the rows of all samples of an epoch, in the order in which they are dealt. Raises
        MachineError where nobody makes batches, or this trainer is turned away.
        """
        return self._drawn(self._begin_pass(), view, drawing, epoch, rows_of)

    def _drawn(
        self, number: int, view: View, drawing: Drawing, epoch: int, rows_of: Callable[[int], Rows]
    ) -> Generator[Batch, None, None]:
        self._check_is_on(number)
        if not self._is_there():
            return
        text, self._sample_bytes = str(view), window_bytes(Terms.parsed(self._machine.terms).shape)
        with self._lock:
            self._tell(self._machine.draw(drawing, epoch, time.monotonic()))
            drawn = self._machine.on
            assert drawn is not None, "it was just begun"
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
        """Tell the head what this loop has had of an epoch, unless another pass has begun."""
        with self._lock:
            if not self._is_closing and number == self._passes:
                self._tell(self._machine.leave_epoch(time.monotonic()))
                self._lock.wait_for(lambda: drawn.is_done or self._error is not None, _LEAVE_SECONDS)

    def ask(self, view: View, wanted: Wanted, sample_bytes: int) -> int | None:
        """Have a batch made that is not wanted yet, where there is room for one; its number, for `have` or
        `drop`. Nothing of `batches` or `drawn` beside it. Raises MachineError where nobody makes it."""
        if not self._is_there() or len(self._machine.requests.numbers) >= self._window(sample_bytes):
            return None
        self._sample_bytes = sample_bytes
        return self._ask(str(view), Wanted(wanted.epoch, wanted.rows[None]))

    def have(self, number: int) -> Batch:
        """A batch that was asked for, once it is made; in any order. Raises MachineError where nobody makes
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
        """Want these no more."""
        self._process.require_current()
        with self._lock:
            self._tell(self._machine.requests.cancel(numbers))

    @property
    def epoch(self) -> int | None:
        """That is drawn together with others now; None where none is."""
        on = self._machine.on
        return None if on is None or on.epoch < 0 else on.epoch

    @property
    def waited(self) -> float:
        """Seconds for which the loop has stood still because its next batch had not come."""
        return self._machine.waited

    def stop(self) -> None:
        """Have an iterator end that waits; the next one is not touched."""
        with self._lock:
            self._is_stopped = True
            self._lock.notify_all()

    def close(self) -> None:
        """Leave; a fork of the process that connected leaves nothing, for nothing in it is connected."""
        if not self._process.is_current:
            return
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
            self._tell(())
            self._lock.notify_all()
        if threading.current_thread() is not self._thread:  # where a garbage collector may run as well
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the program's thread ---

    def _begin_pass(self) -> int:
        """Its number; one that was on is over."""
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
                "another pass over these batches has begun, which ends this one; go on with that one, or "
                "connect once for each of them"
            )

    def _batches_of(self, supplied: m.Supplied) -> list[Batch]:
        """The tensors of a message."""
        while self._returned:
            self._lent -= self._returned.popleft()
        return batches_of(supplied, self._sample_bytes, self._is_lent)

    def _is_lent(self, array: np.ndarray) -> bool:
        """Whether the loop may have an array in the memory of servers; it is counted until it is let go."""
        if self._lent + array.nbytes > LENT_BYTES:
            return False
        self._lent += array.nbytes
        weakref.finalize(array, self._returned.append, array.nbytes).atexit = False
        return True

    def _is_there(self) -> bool:
        """Wait until a server is there; False where that is not wanted any more."""
        self._process.require_current()
        with self._lock:
            if not self._wait(lambda: self._is_stopped or self._machine.is_here, self._start_seconds):
                raise MachineError(
                    f"{self._where} has no data server that serves after {self._start_seconds:g} s; see "
                    "whether they run"
                )
            return not self._is_stopped

    def _window(self, sample_bytes: int) -> int:
        """How many requests may be under way, or made and not handed out."""
        most = max(2, AHEAD_BYTES // max(1, sample_bytes * self._largest))
        return min(self._machine.requests.asking.window, most)

    _largest = 1
    """Samples of a request, at most so far."""

    def _ask(self, view: str, wanted: Wanted) -> int:
        """Have batches made, of rows (batch, image); the number of the request."""
        rows = np.ascontiguousarray(wanted.rows, np.int64)
        self._largest = max(self._largest, rows.size)
        with self._lock:
            requests = self._machine.requests
            ask = m.Ask(requests.fresh(), view, wanted.epoch, rows.size, (rows.tobytes(),), len(rows))
            self._tell(requests.ask(ask, time.monotonic()))
        return ask.number

    def _next_drawn(self, drawn: EpochPass) -> m.Supplied | None:
        """The next batch of a pass; None where there is none any more."""

        def next_of() -> m.Supplied | None:
            found, sends = drawn.next(self._machine.pool, time.monotonic())
            if sends:
                self._tell(sends)
            return found

        return self._taken(next_of, lambda: drawn.is_over)

    def _take(self) -> m.Supplied | None:
        """The next batch; None where it is not wanted any more."""
        return self._taken(self._machine.requests.take, lambda: False)

    def _taken(self, take: Callable[[], m.Supplied | None], ends: Callable[[], bool]) -> m.Supplied | None:
        """What comes next; None where it is not wanted any more, or there is none."""
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
        """Have the other thread send these; the lock is held."""
        if self._wake >= 0:
            if not self._asked:  # else it was woken, and has not come to it yet
                with suppress(BlockingIOError):
                    os.write(self._wake, b"!")
            self._asked.append(sends)

    def _wait(self, holds: Callable[[], object], seconds: float | None = None) -> bool:
        """Wait, with the lock held, until something holds; False where it does not after so long."""
        in_time = self._lock.wait_for(lambda: self._error is not None or holds(), seconds)
        if self._error is not None and not holds():
            raise self._error
        return bool(in_time)

    # --- the thread that carries messages ---

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
        """What is wrong, and what helps."""
        if self._machine.is_stranger:
            return UserError(f"{trouble}; give the recipe, or the store, of {self._where}")
        helps = "mend that" if self._machine.requests.refusal else f"see to {self._where}"
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
    """A connection to the pool that listens there; the rest as `DataClient` has it. Raises UserError for a
    name that leads nowhere."""
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
    """How a trainer asks; raises UserError for what cannot be."""
    try:
        retry_seconds = min(Asking.retry_seconds, lonely_seconds / BEATS)
        return Asking(window=window, retry_seconds=retry_seconds, lonely_seconds=lonely_seconds)
    except ValueError as error:
        raise UserError(str(error)) from error
