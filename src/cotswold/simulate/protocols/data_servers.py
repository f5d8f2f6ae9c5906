"""A simulated pool of data servers: its head, servers, and trainers with loops.

Knows: the state machines of `dataservice.core`, speeds, crashes and pauses. Does not know: the checks, real
time.

A batch records which epoch and rows were requested, so that a checker can verify what a loop received.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from cotswold.dataservice.core.epoch_pass import SharedEpochSettings
from cotswold.dataservice.core.pool import PoolState
from cotswold.dataservice.core.server_queue import BatchJob, RequestQueue
from cotswold.dataservice.core.trainer import BatchRequester
from cotswold.simulate.protocols.network import SimulatedNetwork
from cotswold.simulate.protocols.process import SimulatedProcess
from cotswold.wire import (
    POOL,
    BatchPending,
    BatchRejected,
    BatchReply,
    BatchRequest,
    CancelRequests,
    DataServerReport,
    EpochAssignment,
    EpochReport,
    JoinPool,
    LeavePool,
    Message,
    PoolMembers,
    Send,
    Shutdown,
)

TICK_SECONDS = 0.1
BEAT_SECONDS = 0.5

BatchCallback = Callable[[str, BatchReply], None]
"""Called with each batch that a trainer's loop receives."""


class SimulatedHead:
    """The head of a pool."""

    name = POOL

    def __init__(self, network: SimulatedNetwork, pool: PoolState) -> None:
        self.pool, self._network = pool, network
        network.endpoints[POOL] = self
        self._tick()

    def receive(self, sender: str, message: Message) -> None:
        """Receive a message."""
        heard = cast(DataServerReport | JoinPool | EpochReport | LeavePool, message)
        self._network.send(POOL, self.pool.receive(sender, heard, self._network.loop.now))

    def handle_disconnect(self, name: str) -> None:
        """Handle the end of a connection to a process."""
        self._network.send(POOL, self.pool.on_lost(name, self._network.loop.now))

    def _tick(self) -> None:
        self._network.send(POOL, self.pool.tick(self._network.loop.now))
        self._network.loop.schedule(TICK_SECONDS, self._tick)


class SimulatedDataServer(SimulatedProcess):
    """A data server with one thread, which takes ``seconds()`` per batch."""

    def __init__(
        self, network: SimulatedNetwork, machine: RequestQueue, seconds: Callable[[], float]
    ) -> None:
        super().__init__(network, machine.name)
        self.machine = machine
        self._seconds, self._is_making = seconds, False
        network.endpoints[self.name] = self
        self._beat()

    def receive(self, sender: str, message: Message) -> None:
        """Receive a message."""
        self._do(
            lambda: self._send(self.machine.receive(sender, cast(BatchRequest | CancelRequests, message)))
        )

    def handle_disconnect(self, name: str) -> None:
        """Handle the end of a connection to a trainer."""
        self._do(lambda: self.machine.on_trainer_lost(name))

    def _advance(self) -> None:
        if self._is_making:
            return
        job = self.machine.next()
        if job is not None:
            self._is_making = True
            self._network.loop.schedule(self._seconds(), lambda: self._do(lambda: self._finish_batch(job)))

    def _finish_batch(self, job: BatchJob) -> None:
        self._is_making = False
        if self.machine.finish(job):
            ask = job.request
            made = BatchReply(self.name, ask.number, (1, 1, 1, ask.samples), (ask.samples,), (ask,))
            self._network.send(self.name, [Send(job.trainer, made)])

    def _beat(self) -> None:
        if not self.is_alive:
            return
        self._do(lambda: self._network.send(self.name, [Send(POOL, self._report())]))
        self._network.loop.schedule(BEAT_SECONDS, self._beat)

    def _report(self) -> DataServerReport:
        return DataServerReport(self.name, f"at {self.name}", '{"store": "s"}', 0, 0.0, 0, 0, 0, 0, 0)


class SimulatedDataTrainer(SimulatedProcess):
    """A trainer whose loop takes ``seconds()`` per batch.

    It requests ``asks`` in its own order, or draws ``epochs`` of ``drawing`` together with others.
    """

    def __init__(
        self,
        network: SimulatedNetwork,
        machine: BatchRequester,
        seconds: Callable[[], float],
        on_answer: BatchCallback,
        *,
        asks: list[BatchRequest] | None = None,
        drawing: SharedEpochSettings | None = None,
        epochs: range = range(0),
        breaks: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create the trainer; ``breaks`` returns True if the loop leaves an epoch after a batch."""
        super().__init__(network, machine.name)
        self.machine, self.error, self.error_time = machine, "", 0.0
        self._seconds, self._on_answer, self._break_indices = seconds, on_answer, breaks
        self._asks, self._outstanding = list(asks or ()), len(asks or ())
        self._drawing, self._epochs = drawing, list(epochs)
        self._is_in_epoch = self._has_started = self._is_busy = False
        network.endpoints[self.name] = self
        self._tick()

    @property
    def is_done(self) -> bool:
        """True if the loop has received everything, cannot continue, or is dead."""
        if self.error or not self.is_alive:
            return True
        if self._drawing is None:
            return not self._outstanding
        return not self._epochs and not self._is_in_epoch and not self._is_busy

    def receive(self, sender: str, message: Message) -> None:
        """Receive a message."""
        heard = cast(
            PoolMembers | EpochAssignment | BatchReply | BatchRejected | BatchPending | Shutdown, message
        )
        self._do(lambda: self._send(self.machine.receive(sender, heard, self._now)))

    def handle_disconnect(self, name: str) -> None:
        """Handle the end of a connection to a peer."""
        self._do(lambda: self._send(self.machine.on_lost(name, "it ended", self._now)))

    @property
    def _now(self) -> float:
        return self._network.loop.now

    def _tick(self) -> None:
        if not self.is_alive:
            return
        if self._paused is None:
            self._do(self._on_tick)
        self._network.loop.schedule(TICK_SECONDS, self._tick)

    def _on_tick(self) -> None:
        self._send(self.machine.tick(self._now))
        trouble = self.machine.failure(self._now)
        if trouble and not self.error and not self.is_done:
            self.error, self.error_time = trouble, self._now

    def _advance(self) -> None:
        if self.error or not self.machine.is_joined:
            return
        if self._drawing is None:
            while self._asks and self.machine.requests.room:
                self._send(self.machine.requests.submit(self._asks.pop(0), self._now))
        if self._is_busy:
            return
        found = self.machine.requests.take_next() if self._drawing is None else self._next()
        if found is not None:
            self._outstanding -= 1
            self._on_answer(self.name, found)
            self._is_busy = True
            self._network.loop.schedule(self._seconds(), lambda: self._do(self._free))

    def _free(self) -> None:
        self._is_busy = False
        if self._is_in_epoch and self._break_indices():
            self._leave()

    def _next(self) -> BatchReply | None:
        """Return the next batch of the current epoch; then begin the next epoch."""
        assert self._drawing is not None, "it draws"
        if not self._is_in_epoch:
            if not self._epochs:
                return None
            self._send(self.machine.start_pass(self._drawing, self._epochs[0], self._now))
            self._is_in_epoch, self._has_started = True, False
        on = self.machine.active_pass
        assert on is not None, "a pass is in progress"
        if not self._has_started and on.epoch >= 0:
            self._has_started = True
            self._send(self.machine.begin(self._request, self._now))
        found, sends = self.machine.next(self._now)
        self._send(sends)
        if found is None and on.is_finished:
            self._leave()
            self._network.loop.schedule(0.0, lambda: self._do(lambda: None))
        return found

    def _leave(self) -> None:
        self._is_in_epoch = False
        self._epochs.pop(0)
        self._send(self.machine.leave_epoch(self._now))

    @staticmethod
    def _request(number: int, epoch: int, batch: tuple[int, int]) -> BatchRequest:
        return BatchRequest(number, "", epoch, batch[1] - batch[0], (batch,))
