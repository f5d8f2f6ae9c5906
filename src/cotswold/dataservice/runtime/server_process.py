"""A data server process: makes the batches that trainers request.

Knows: endpoints, the request queue, threads. Does not know: the content of a batch.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from cotswold import wire as m
from cotswold.dataservice.core.server_queue import BatchJob, RequestQueue
from cotswold.errors import CotswoldError, MachineError, UserError, describe_exception
from cotswold.host import keep_freed_memory, wake_pipe
from cotswold.host.processes import import_function
from cotswold.processes.endpoint_settings import EndpointSettings, open_endpoint
from cotswold.transport import Lost, Ready
from cotswold.transport.multi_endpoint import MultiEndpoint
from cotswold.wire.lifecycle import StopProcess
from cotswold.wire.messenger import Messenger, Received

_TICK_SECONDS = 0.2
_JOBS_PER_THREAD = 2
"""Requests per thread that are with the threads: one in progress, one waiting."""
_QUEUED_BYTES = 5 << 29
"""Bytes of answers that a trainer has not read, at most. A client like `DataClient` never reaches it: it
has two batches of the greatest length, and what its loop holds in shared memory."""
_ALIGNMENT_BYTES = 64
"""Bytes of a message between its samples and its labels, at most."""
_VIEWS = 16
"""Views whose bytes per sample are known, at most."""
_LITTLE_BYTES = 1 << 20
"""Bytes of a message in addition to its batches, at most."""


class Cache(Protocol):
    """Statistics of a cache."""

    hits: int
    misses: int
    bytes: int
    peak_bytes: int


@runtime_checkable
class DataWork(Protocol):
    """The work of a data server; several threads call it at once."""

    @property
    def terms(self) -> str:
        """JSON with the terms of the service."""
        ...

    @property
    def cache(self) -> Cache:
        """The cache in memory."""
        ...

    def batches(
        self,
        view: str,
        epoch: int,
        rows: np.ndarray[Any, np.dtype[np.int64]],
        out: memoryview | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Make batches of rows ``(batch, image)``: contiguous samples ``(batch, image, channel, y, x)``,
        each batch with images last, and labels ``(batch, image, ...)``. The samples are at the start of
        ``out`` if it is large enough. Raises CotswoldError."""
        ...


def main(
    *,
    name: str,
    pool: str,
    work: str,
    arguments: Mapping[str, object],
    endpoint_settings: Mapping[str, Any],
    threads: int = 1,
    beat_seconds: float = 1.0,
    slow_seconds: float = 0.0,
    lender: tuple[str, str] | None = None,
) -> int:
    """Run the data server called ``name``, whose pool's head is at the address ``pool``.

    The token is in the environment.

    Args:
        work: ``"module:function"`` that returns a `DataWork`, given ``arguments``.
        endpoint_settings: Fields of `EndpointSettings`.
        threads: Threads that make batches.
        slow_seconds: Delay of each batch, to test slow servers.
        lender: Name and address of the process that started it for a remote pool. That process receives the
            same messages as the head, and may end the server.

    Raises:
        MachineError: If the head or the lender exits first.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the head ends it
    made = import_function(work)(**arguments)
    if not isinstance(made, DataWork):
        raise UserError(f"{work} must return a DataWork, got a {type(made).__name__}")
    with open_endpoint(name, EndpointSettings(**endpoint_settings)) as endpoint:
        endpoint.connect(m.POOL, pool)
        if lender is not None:
            endpoint.connect(*lender)
        told = (m.POOL,) if lender is None else (m.POOL, lender[0])
        server = DataServer(name, made, Messenger(endpoint), threads, beat_seconds, slow_seconds, told)
        try:
            server.serve()
        finally:
            server.close()
    return 0


class DataServer:
    """One server; call `serve` until the head ends it."""

    def __init__(
        self,
        name: str,
        work: DataWork,
        messenger: Messenger,
        threads: int,
        beat_seconds: float,
        slow_seconds: float = 0.0,
        receivers: Sequence[str] = (m.POOL,),
    ) -> None:
        """``receivers``: receivers of each heartbeat, the head and the lender. Either may end the server,
        which then notifies the other."""
        self._receivers = receivers
        self._name, self._work, self._messenger = name, work, messenger
        self._machine = RequestQueue(name)
        self._beat_seconds, self._slow_seconds = beat_seconds, slow_seconds
        self._beaten = float("-inf")
        self._samples_sent, self._batches, self._sent_bytes, self._seconds = 0, 0, 0, 0.0
        self._jobs: SimpleQueue[tuple[BatchJob, memoryview | None] | None] = SimpleQueue()
        self._running = 0
        self._finished: deque[
            tuple[BatchJob, tuple[torch.Tensor, torch.Tensor] | str, float, memoryview | None]
        ] = deque()
        self._wake_reader, self._wake_writer = wake_pipe()
        messenger.endpoint.watch(self._wake_reader)
        assert not isinstance(messenger.endpoint, MultiEndpoint), "a data server has one network"
        self._endpoint = messenger.endpoint
        messenger.endpoint.max_unread_bytes = 2 * _QUEUED_BYTES  # bounded by this server itself
        self._sample_bytes = 0.0
        """Bytes per sample of the largest answer so far."""
        self._view_bytes: dict[str, float] = {}
        """Bytes per sample of the last views."""
        self._threads = [
            threading.Thread(target=self._run, name=f"making-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def serve(self) -> None:
        """Answer requests until the end; raise MachineError if the head is lost, or rejects the server."""
        while self._attend(self._messenger.receive(_TICK_SECONDS)):
            self._send_finished()
            self._start_jobs()
            now = time.monotonic()
            if now - self._beaten >= self._beat_seconds:
                self._beaten = now
                offer = self._offer()
                for each in self._receivers:
                    self._messenger.send(each, offer)

    def close(self) -> None:
        """End the threads."""
        for _ in self._threads:
            self._jobs.put(None)

    def _attend(self, event: object) -> bool:
        match event:
            case Received(sender, m.Shutdown(_, why)) if sender == m.POOL:
                if why:
                    raise MachineError(f"{self._name} was rejected by its pool: {why}")
                return False
            case Received(sender, StopProcess()) if sender in self._receivers:
                for other in self._receivers:
                    if other != sender:
                        self._messenger.send(other, m.LeavePool(self._name))
                return False
            case Received(sender, message) if isinstance(message, m.BatchRequest | m.CancelRequests):
                for each in self._machine.receive(sender, message):
                    self._messenger.send(each.to, each.message)
            case Ready():
                with suppress(BlockingIOError):
                    os.read(self._wake_reader, 4096)
            case Lost(peer, why) if peer == m.POOL:
                raise MachineError(f"{self._name} lost the head of its pool ({why})")
            case Lost(peer, why) if peer in self._receivers:
                raise MachineError(f"{self._name} lost {peer}, which started it ({why})")
            case Lost(peer, _):
                self._machine.on_trainer_lost(peer)
            case _:
                pass
        return True

    def _start_jobs(self) -> None:
        """Pass the next requests to threads."""
        while self._running < _JOBS_PER_THREAD * len(self._threads):
            job = self._machine.next()
            if job is None:
                return
            if self._is_full(job.trainer, round(self._sample_bytes * job.request.samples)):
                self._refuse(job, "")  # before making the batch
                continue
            self._running += 1
            # the batch is made in the memory that the trainer maps
            needed = round(self._view_bytes.get(job.request.view, 0.0) * job.request.samples)
            out = self._endpoint.reserve(job.trainer, needed + _ALIGNMENT_BYTES) if needed else None
            self._jobs.put((job, out))

    def _is_full(self, trainer: str, more_bytes: int) -> bool:
        """True if a trainer does not read its answers."""
        waiting = self._messenger.endpoint.unread_bytes(trainer)
        return waiting > 0 and waiting + more_bytes > _QUEUED_BYTES

    def _refuse(self, job: BatchJob, why: str) -> None:
        if self._machine.finish(job):
            self._messenger.send(job.trainer, m.BatchRejected(self._name, job.request.number, why))

    def _send_finished(self) -> None:
        while self._finished:
            job, found, seconds, out = self._finished.popleft()
            self._running -= 1
            self._seconds += seconds
            self._reply(job, found, 0 if out is None else len(out))
            if out is not None:
                self._endpoint.release(job.trainer, out)  # unless it was sent

    def _reply(self, job: BatchJob, found: tuple[torch.Tensor, torch.Tensor] | str, reserved: int) -> None:
        """Send a batch; ``reserved`` are its bytes that already count as unread."""
        if isinstance(found, str):
            self._refuse(job, found)
            return
        size = sum(each.numel() * each.element_size() for each in found)
        each = size / max(1, job.request.samples)
        self._sample_bytes = max(self._sample_bytes, each)
        if len(self._view_bytes) >= _VIEWS and job.request.view not in self._view_bytes:
            self._view_bytes.clear()
        self._view_bytes[job.request.view] = each
        most = self._messenger.endpoint.message_bytes - _LITTLE_BYTES
        if size > most:
            self._refuse(job, f"a batch of {size} bytes is too long for a message of {most} bytes")
        elif self._is_full(job.trainer, size - reserved):
            self._refuse(job, "")
        elif self._machine.finish(job):
            self._samples_sent += job.request.samples
            self._batches += job.request.batches
            self._sent_bytes += size
            self._messenger.send(job.trainer, batch_reply(self._name, job.request.number, *found))

    def _offer(self) -> m.DataServerReport:
        cache = self._work.cache
        return m.DataServerReport(
            self._name,
            self._messenger.endpoint.address,
            self._work.terms,
            self._samples_sent,
            self._seconds,
            cache.hits,
            cache.misses,
            cache.bytes,
            cache.peak_bytes,
            self._machine.queued,
            self._batches,
            self._sent_bytes,
        )

    # --- worker threads ---

    def _run(self) -> None:
        while (task := self._jobs.get()) is not None:
            job, out = task
            began = time.perf_counter()
            found: tuple[torch.Tensor, torch.Tensor] | str
            try:
                if self._slow_seconds:
                    time.sleep(self._slow_seconds)
                rows = np.frombuffer(buffer_of(job.request.buffers), np.int64)
                ask = job.request
                if len(rows) != ask.samples or ask.batches < 1 or ask.samples % ask.batches:
                    raise UserError(f"got {len(rows)} rows, expected {ask.samples} in {ask.batches} batches")
                found = self._work.batches(ask.view, ask.epoch, rows.reshape(ask.batches, -1), out)
            except CotswoldError as error:
                found = str(error) or type(error).__name__
            except BaseException as error:  # a user's transform may raise anything
                found = describe_exception(error) or type(error).__name__
            self._finished.append((job, found, time.perf_counter() - began, out))
            with suppress(BlockingIOError):  # the pipe is full: enough wake-ups are pending
                os.write(self._wake_writer, b"!")
            del task, job, found, out


def buffer_of(buffers: tuple[object, ...]) -> memoryview:
    """The only buffer of a message; raise UserError if there is none."""
    if len(buffers) != 1 or not isinstance(buffers[0], bytes | bytearray | memoryview):
        raise UserError("the request has no rows")
    return memoryview(buffers[0])


def batch_reply(server: str, number: int, samples: torch.Tensor, labels: torch.Tensor) -> m.BatchReply:
    """Batches as a message, without copies: each has images last, and all are contiguous."""
    last = samples.permute(0, 3, 4, 2, 1).numpy()
    return m.BatchReply(
        server,
        number,
        tuple(last.shape[1:]),
        tuple(labels.shape[1:]),
        (last.data.cast("B"), labels.numpy().data.cast("B")),
        len(last),
    )
