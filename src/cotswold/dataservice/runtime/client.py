"""Batches from data servers for a reader of this process.

Knows: endpoints, one messaging thread. Does not know: the choice of servers
(`dataservice.core.request_scheduler`), tensors (`dataservice.runtime.batch_tensors`), the order of samples.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cached_property

import numpy as np

from cotswold import wire as m
from cotswold.data.loading.batching import Batch, BatchRows, coalesce
from cotswold.data.loading.order import Rows
from cotswold.data.loading.served_store import DatasetInfo, DatasetView
from cotswold.dataservice.core.epoch_pass import EpochPass, SharedEpochSettings
from cotswold.dataservice.core.request_scheduler import RequestSettings
from cotswold.dataservice.core.trainer import BEATS
from cotswold.dataservice.runtime.batch_tensors import batches_of, window_bytes
from cotswold.dataservice.runtime.pool_connection import START_SECONDS, PoolConnection
from cotswold.errors import UserError
from cotswold.host import Token
from cotswold.processes.endpoint_settings import local_address
from cotswold.transport.address import Address
from cotswold.transport.host_names import address_of

AHEAD_BYTES = 256 << 20
"""Bytes of all batches that are requested ahead, at most; two batches are always allowed."""
BORROWED_BYTES = 128 << 20
"""Bytes of batches held by the loop that stay in servers' memory; further ones are copied. A server makes
no batches for a client that holds all of its memory."""
_LEAVE_SECONDS = 2.0
"""Seconds to wait until the head knows which batches a loop has had."""


class DataClient(PoolConnection):
    """One trainer's connection to a pool; use in a ``with`` statement, or `close`.

    One thread of the program may use it. A second thread of the client handles messages and requests batches
    ahead.
    """

    _pass_number = 0
    """Number of passes that were started; the last may be active."""
    _sample_bytes = 0
    """Bytes of a sample of the wanted view."""
    _borrowed_bytes = 0
    """Bytes of servers' memory that the loop holds."""

    @cached_property
    def _returned(self) -> deque[int]:
        """Bytes of servers' memory that the loop has released."""
        return deque()

    def terms(self) -> DatasetInfo:
        """Return the pool's terms; wait until a server has sent them. Raises MachineError if none does."""
        self._process.require_current()
        with self._lock:
            self._is_stopped = False
        self._wait_joined()
        return DatasetInfo.parsed(self._machine.terms)

    def batches(
        self, view: DatasetView, wanted: Iterator[BatchRows], sample_bytes: int
    ) -> Generator[Batch, None, None]:
        """Yield the wanted batches in order, requested ahead; one such iterator at a time.

        Raises MachineError if no server makes them.
        """
        # start now, so that a `stop` before the first batch takes effect
        return self._batches(self._begin_pass(), view, wanted, sample_bytes)

    def _batches(
        self, number: int, view: DatasetView, wanted: Iterator[BatchRows], sample_bytes: int
    ) -> Generator[Batch, None, None]:
        self._check_current(number)
        text, ended, asked = str(view), False, 0
        asking = self._machine.requests.settings
        # results may depend on the other samples of the batch
        most = 1 if view.uses_custom_function else asking.batches_per_request
        requests = coalesce(wanted, sample_bytes, asking.request_bytes, most)
        self._sample_bytes = sample_bytes
        if not self._wait_joined():
            return
        try:
            while True:
                if 2 * asked <= self._window(sample_bytes):  # half of it per wake-up of the messaging thread
                    while not ended and asked < self._window(sample_bytes):
                        each = next(requests, None)
                        if each is None:
                            ended = True
                        else:
                            self._submit(text, each)
                            asked += 1
                if ended and not asked:
                    return
                found = self._next_batch()
                if found is None:
                    return
                asked -= 1
                for batch in self._batches_of(found):
                    yield batch
                    self._check_current(number)
        finally:
            if self._process.is_current:
                with self._lock:
                    if not self._is_closing and number == self._pass_number:
                        self._enqueue(self._machine.requests.cancel())

    def shared_epoch(
        self, view: DatasetView, settings: SharedEpochSettings, epoch: int, rows_of: Callable[[int], Rows]
    ) -> Generator[Batch, None, None]:
        """Yield the batches of an epoch that is shared with other trainers; -1 for the current one. It ends
        once the epoch is over. One such iterator at a time, and no `batches` at the same time.

        ``rows_of`` returns the rows of all samples of an epoch, in the order of assignment. Raises
        MachineError if no server makes batches, or the pool rejects this trainer.
        """
        return self._shared_epoch(self._begin_pass(), view, settings, epoch, rows_of)

    def _shared_epoch(
        self,
        number: int,
        view: DatasetView,
        drawing: SharedEpochSettings,
        epoch: int,
        rows_of: Callable[[int], Rows],
    ) -> Generator[Batch, None, None]:
        self._check_current(number)
        if not self._wait_joined():
            return
        text, self._sample_bytes = str(view), window_bytes(DatasetInfo.parsed(self._machine.terms).shape)
        with self._lock:
            self._enqueue(self._machine.start_pass(drawing, epoch, time.monotonic()))
            drawn = self._machine.active_pass
            assert drawn is not None, "the pass was just started"
        try:
            with self._lock:
                self._wait(lambda: self._is_stopped or drawn.epoch >= 0)
            if self._is_stopped:
                return
            rows, first = rows_of(drawn.epoch), drawn.epoch * drawing.samples

            def ask_of(number: int, at: int, batch: tuple[int, int]) -> m.BatchRequest:
                own = np.ascontiguousarray(rows[batch[0] - first : batch[1] - first], np.int64)
                return m.BatchRequest(number, text, at, len(own), (own.tobytes(),))

            with self._lock:
                self._enqueue(self._machine.begin(ask_of, time.monotonic()))
            while True:
                found = self._next_shared(drawn)
                if found is None:
                    return
                yield self._batches_of(found)[0]
                self._check_current(number)
        finally:
            if self._process.is_current:
                self._leave_epoch(number, drawn)

    def _leave_epoch(self, number: int, drawn: EpochPass) -> None:
        """Report to the head which batches of an epoch this loop has had, unless another pass has started."""
        with self._lock:
            if not self._is_closing and number == self._pass_number:
                self._enqueue(self._machine.leave_epoch(time.monotonic()))
                self._lock.wait_for(lambda: drawn.is_done or self._error is not None, _LEAVE_SECONDS)

    def submit(self, view: DatasetView, wanted: BatchRows, sample_bytes: int) -> int | None:
        """Request a batch in advance, if there is space; return its number for `result` or `cancel`. Do not
        use `batches` or `shared_epoch` at the same time. Raises MachineError if no server makes it."""
        if not self._wait_joined() or len(self._machine.requests.numbers) >= self._window(sample_bytes):
            return None
        self._sample_bytes = sample_bytes
        return self._submit(str(view), BatchRows(wanted.epoch, wanted.rows[None]))

    def result(self, number: int) -> Batch:
        """Return a requested batch, once it is ready; in any order. Raises MachineError if no server makes
        it."""
        self._process.require_current()
        requests, began = self._machine.requests, time.perf_counter()
        with self._lock:
            self._wait(lambda: requests.is_ready(number))
            found = requests.pick(number)
            self._machine.handed += found.shape[-1]
            self._machine.waited += time.perf_counter() - began
        return self._batches_of(found)[0]

    def cancel(self, numbers: Sequence[int]) -> None:
        """Cancel these requests."""
        self._process.require_current()
        with self._lock:
            self._enqueue(self._machine.requests.cancel(numbers))

    @property
    def epoch(self) -> int | None:
        """The shared epoch that is active; None if there is none."""
        on = self._machine.active_pass
        return None if on is None or on.epoch < 0 else on.epoch

    @property
    def waited(self) -> float:
        """Seconds for which the loop has waited for batches."""
        return self._machine.waited

    # --- the program's thread ---

    def _begin_pass(self) -> int:
        """Start a pass and return its number; a pass that was active ends."""
        self._process.require_current()
        with self._lock:
            self._is_stopped = False
            self._pass_number += 1
            if not self._is_closing:
                self._enqueue(
                    (*self._machine.leave_epoch(time.monotonic()), *self._machine.requests.cancel())
                )
            return self._pass_number

    def _check_current(self, number: int) -> None:
        self._process.require_current()
        if number != self._pass_number:
            raise UserError(
                "another pass over these batches has started and ends this one; continue with that one, or "
                "use one connection per pass"
            )

    def _batches_of(self, reply: m.BatchReply) -> list[Batch]:
        """The tensors of a message."""
        while self._returned:
            self._borrowed_bytes -= self._returned.popleft()
        return batches_of(reply, self._sample_bytes, self._borrow)

    def _borrow(self, array: np.ndarray) -> bool:
        """True if the loop may hold an array in servers' memory; it is counted until it is released."""
        if self._borrowed_bytes + array.nbytes > BORROWED_BYTES:
            return False
        self._borrowed_bytes += array.nbytes
        weakref.finalize(array, self._returned.append, array.nbytes).atexit = False
        return True

    def _window(self, sample_bytes: int) -> int:
        """Number of requests that may be outstanding, or ready and not delivered."""
        most = max(2, AHEAD_BYTES // max(1, sample_bytes * self._largest))
        return min(self._machine.requests.settings.window, most)

    _largest = 1
    """Samples of the largest request so far."""

    def _submit(self, view: str, wanted: BatchRows) -> int:
        """Request batches of rows (batch, image); return the request's number."""
        rows = np.ascontiguousarray(wanted.rows, np.int64)
        self._largest = max(self._largest, rows.size)
        with self._lock:
            requests = self._machine.requests
            ask = m.BatchRequest(
                requests.next_number(), view, wanted.epoch, rows.size, (rows.tobytes(),), len(rows)
            )
            self._enqueue(requests.submit(ask, time.monotonic()))
        return ask.number

    def _next_shared(self, drawn: EpochPass) -> m.BatchReply | None:
        """The next batch of a pass; None if none is left."""

        def next_of() -> m.BatchReply | None:
            found, sends = drawn.next(self._machine.pool, time.monotonic())
            if sends:
                self._enqueue(sends)
            return found

        return self._wait_batch(next_of, lambda: drawn.is_finished)

    def _next_batch(self) -> m.BatchReply | None:
        """The next batch; None if `stop` was called."""
        return self._wait_batch(self._machine.requests.take_next, lambda: False)

    def _wait_batch(
        self, take_next: Callable[[], m.BatchReply | None], is_finished: Callable[[], bool]
    ) -> m.BatchReply | None:
        """The next batch; None if `stop` was called, or none is left."""
        found: m.BatchReply | None = None

        def came() -> bool:
            nonlocal found
            found = take_next()
            return found is not None

        began = time.perf_counter()
        with self._lock:
            self._wait(lambda: self._is_stopped or found is not None or came() or is_finished())
            if found is not None:
                self._machine.handed += found.shape[-1] * found.batches
                self._machine.waited += time.perf_counter() - began
        return found


def open_client(
    host: str,
    port: int,
    token: Token,
    settings: RequestSettings,
    *,
    store: str = "",
    encrypt: bool = True,
    ports: Sequence[int] = (),
    start_seconds: float = START_SECONDS,
    again: str | None = None,
) -> DataClient:
    """Connect to the pool that listens at ``host`` and ``port``; other arguments as for `DataClient`.
    Raises UserError if the name cannot be resolved."""
    found = address_of(host, port)
    return DataClient(
        token,
        str(Address.of_port(found, port)),
        store=store,
        host=local_address(found),
        encrypt=encrypt,
        ports=ports,
        request_settings=settings,
        pool_text=f"the data servers at {host}:{port}",
        start_seconds=start_seconds,
        again=again,
    )


def request_settings(window: int, no_server_seconds: float) -> RequestSettings:
    """Settings of requests; raise UserError for invalid values."""
    try:
        retry_seconds = min(RequestSettings.retry_seconds, no_server_seconds / BEATS)
        return RequestSettings(
            window=window, retry_seconds=retry_seconds, no_server_seconds=no_server_seconds
        )
    except ValueError as error:
        raise UserError(str(error)) from error
