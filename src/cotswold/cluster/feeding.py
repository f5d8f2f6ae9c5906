"""Batches that data servers make, for a reader of this process.

Knows: endpoints, one thread that carries messages, batches as tensors. Does not know: who asks which server
when (`server.requests`), the order of samples.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from types import TracebackType
from typing import Self

import numpy as np
import torch

from cotswold.cluster.post import Letter, Post
from cotswold.cluster.transport import Endpoint, Lost, Ready
from cotswold.data.buffer import Epoch
from cotswold.data.making import Batch, Wanted
from cotswold.data.order import Order
from cotswold.data.serving import Terms, View
from cotswold.errors import CotswoldError, MachineError, UserError
from cotswold.host import Token
from cotswold.server import messages as m
from cotswold.server.requests import Asking
from cotswold.server.trainer import Trainer

_TICK_SECONDS = 0.05
_START_SECONDS = 120.0
"""For so long it is waited until a data server is there: it may read a store first."""
AHEAD_BYTES = 256 << 20
"""Batches that are asked ahead have no more bytes together, but for two of them."""
_HEARD = (m.Roster, m.Supplied, m.Unsupplied, m.Dismiss)


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
        asking: Asking | None = None,
        where: str = "",
        start_seconds: float = _START_SECONDS,
    ) -> None:
        """``address``: of the pool's head; without one the head calls (`own_address`). ``store``: the
        identity of the store that is wanted; ``host``: the address of this machine at which other hosts
        reach it; ``where``: what errors call the pool."""
        self._where = where or "the pool of data servers"
        self._start_seconds = start_seconds
        self._lock = threading.Condition()
        self._error: CotswoldError | None = None
        self._is_closing = self._is_stopped = False
        self._asked: deque[Sequence[m.Send]] = deque()
        self._number = 0
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        name = f"trainer-{re.sub('[^A-Za-z0-9-]', '-', socket.gethostname())[:30]}-{os.getpid()}"
        self.name = f"{name}-{secrets.token_hex(3)}"
        self._endpoint = Endpoint(token, self.name, host=host, encrypt=encrypt)
        self._post = Post(self._endpoint)
        self._endpoint.watch(self._woken)
        self._asking = asking or Asking()
        self._machine = Trainer(self.name, self._endpoint.address, store, self._asking, time.monotonic())
        if address is not None:
            self._endpoint.connect(m.POOL, address)
        self._thread = threading.Thread(target=self._run, name="cotswold-data", daemon=True)
        self._thread.start()

    @property
    def own_address(self) -> str:
        """Where the head of a pool calls."""
        return self._endpoint.address

    def terms(self) -> Terms:
        """What is served; waits until a server has said so. Raises MachineError where none does."""
        self._is_stopped = False
        self._is_there()
        return Terms.parsed(self._machine.terms)

    def batches(
        self, view: View, wanted: Iterator[Wanted], sample_bytes: int
    ) -> Generator[Batch, None, None]:
        """What is wanted, in order, asked ahead; one such iterator at a time.

        Raises MachineError where nobody makes it.
        """
        text, ended = str(view), False
        self._is_stopped = False
        if not self._is_there():
            return
        try:
            while True:
                while not ended and self._has_room(sample_bytes):
                    each = next(wanted, None)
                    if each is None:
                        ended = True
                    else:
                        self._ask(text, each)
                if ended and not self._machine.requests.numbers:
                    return
                found = self._take()
                if found is None:
                    return
                yield batch_of(found)
        finally:
            with self._lock:
                if not self._is_closing:
                    self._tell(self._machine.requests.cancel())

    def stop(self) -> None:
        """Have an iterator end that waits; the next one is not touched."""
        with self._lock:
            self._is_stopped = True
            self._lock.notify_all()

    def close(self) -> None:
        """Leave."""
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
            self._tell(())
            self._lock.notify_all()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the program's thread ---

    def _is_there(self) -> bool:
        """Wait until a server is there; False where that is not wanted any more."""
        with self._lock:
            if not self._wait(lambda: self._is_stopped or self._machine.is_here, self._start_seconds):
                raise MachineError(
                    f"{self._where} has no data server that serves after {self._start_seconds:g} s; see "
                    "whether they run"
                )
            return not self._is_stopped

    def _has_room(self, sample_bytes: int) -> bool:
        with self._lock:
            requests = self._machine.requests
            most = max(2, AHEAD_BYTES // max(1, sample_bytes * self._largest))
            return requests.room > 0 and len(requests.numbers) < most

    _largest = 1
    """Samples of a batch, at most so far."""

    def _ask(self, view: str, wanted: Wanted) -> None:
        rows = np.ascontiguousarray(wanted.rows, np.int64)
        self._largest = max(self._largest, len(rows))
        with self._lock:
            self._number += 1
            ask = m.Ask(self._number, view, wanted.epoch, len(rows), (rows.tobytes(),))
            self._tell(self._machine.requests.ask(ask, time.monotonic()))

    def _take(self) -> m.Supplied | None:
        """The next batch; None where it is not wanted any more."""
        found: m.Supplied | None = None

        def came() -> bool:
            nonlocal found
            found = self._machine.requests.take()
            return found is not None

        began = time.perf_counter()
        with self._lock:
            self._wait(lambda: self._is_stopped or came())
            if found is not None:
                self._machine.handed += found.shape[-1]
                self._machine.waited += time.perf_counter() - began
        return found

    def _tell(self, sends: Sequence[m.Send]) -> None:
        """Have the other thread send these; the lock is held."""
        if self._wake >= 0:
            self._asked.append(sends)
            with suppress(BlockingIOError):  # it has been woken often enough
                os.write(self._wake, b"!")

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
                self._deliver(self._machine.leave())
        except CotswoldError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(MachineError(f"the connection to {self._where} broke: {error!r}"))
        finally:
            self._endpoint.close()
            with self._lock:
                self._fail(MachineError(f"the connection to {self._where} is closed"))
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
                        why = "it refused the token of this process; give the one that the pool has"
                    sends += self._machine.lost(peer, why, now)
                case _:
                    pass
            del event
            addresses = dict(self._machine.addresses)
            sends += self._machine.tick(now)
            trouble = self._machine.trouble(now)
            while self._asked:
                sends += self._asked.popleft()
        for name, address in addresses.items():
            self._endpoint.connect(name, address)
        self._deliver(sends)
        if trouble:
            self._fail(MachineError(f"{trouble}; see to {self._where}, and resume the run"))

    def _fail(self, error: CotswoldError) -> None:
        with self._lock:
            self._error = self._error or error
            self._lock.notify_all()

    def _deliver(self, sends: Iterable[m.Send]) -> None:
        for each in sends:
            self._post.send(each.to, each.message)


class ServedFeed:
    """The `Feed` of a reader whose batches data servers make."""

    def __init__(self, client: DataClient, view: View, sample_bytes: int) -> None:
        """``sample_bytes``: of a sample of that view, float32."""
        self._client, self._view, self._sample_bytes = client, view, sample_bytes

    def batches(self, order: Order, epochs: Iterator[Epoch]) -> Generator[Batch, None, None]:
        """As `Feed.batches`. Raises MachineError where nobody makes them."""
        wanted = (Wanted(epoch.number, rows) for epoch in epochs for rows in epoch.batches())
        return self._client.batches(self._view, wanted, self._sample_bytes)

    def stop(self) -> None:
        """As `Feed.stop`."""
        self._client.stop()


def batch_of(supplied: m.Supplied) -> Batch:
    """The tensors of a message, in its memory. Raises MachineError for what is no batch."""
    classes = len(supplied.targets) == 1
    try:
        samples, labels = supplied.buffers
        assert isinstance(samples, bytes | bytearray | memoryview), "as messages are read"
        assert isinstance(labels, bytes | bytearray | memoryview), "as messages are read"
        values = _tensor(samples, np.dtype(np.float32), supplied.shape)
        targets = _tensor(labels, np.dtype(np.int64 if classes else np.float32), supplied.targets)
        return values.permute(3, 2, 0, 1), targets
    except (ValueError, RuntimeError) as error:
        raise MachineError(f"{supplied.server} sent no batch ({error}); is it of another version?") from error


def _tensor(buffer: bytes | bytearray | memoryview, dtype: np.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if len(memoryview(buffer).cast("B")) != prod(shape) * dtype.itemsize:
        raise ValueError(f"{memoryview(buffer).nbytes} bytes for {shape}")
    found = np.frombuffer(buffer, dtype).reshape(shape)
    return torch.from_numpy(found if found.flags.writeable else found.copy())


def window_bytes(shape: tuple[int, int, int]) -> int:
    """Bytes of a sample (channel, y, x) in a batch."""
    return 4 * prod(shape)


def asking_of(window: int, lonely_seconds: float) -> Asking:
    """How a trainer asks; raises UserError for what cannot be."""
    try:
        return replace(Asking(), window=window, lonely_seconds=lonely_seconds)
    except ValueError as error:
        raise UserError(str(error)) from error
