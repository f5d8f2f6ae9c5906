"""Worker process: builds its work and executes the tasks of its state machine.

Knows: the endpoint, the work, two threads, clocks. Does not know: the choice of tasks and sums
(`batch.core.worker`).

One thread handles messages; the other computes and takes the next portion itself, so that no portion waits
for a message.
"""

from __future__ import annotations

import signal
import threading
import time
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from cotswold import wire as m
from cotswold.batch.core.worker import BatchWorker as Machine
from cotswold.batch.core.worker import FetchTask, PortionTask, ReduceTask, Task, WorkerState
from cotswold.batch.runtime.array_sums import ArraySums
from cotswold.batch.runtime.collectives import HELD_SECONDS, WorkerCollectives, reduction_number
from cotswold.batch.runtime.point_assembly import PointAssembly
from cotswold.batch.runtime.pulls import VectorPulls
from cotswold.errors import MachineError, describe_exception
from cotswold.processes.hang_detector import WorkerHangDetector
from cotswold.processes.worker_context import worker_context
from cotswold.processes.worker_thread import WorkerThread
from cotswold.shards.core.permutation import PortionPermutation
from cotswold.shards.runtime.arithmetic import Array, raw
from cotswold.shards.runtime.parameters import parameters_of
from cotswold.shards.runtime.work import Work
from cotswold.transport import Lost, MultiEndpoint, Ready
from cotswold.transport import Message as Piece
from cotswold.wire.lifecycle import GetParameters, Parameters, PeerAddresses, WorkerReady
from cotswold.wire.messenger import AnyMessage, Messenger, Received

_CACHED_SAMPLES = 1 << 22
"""Maximum cached sample numbers of a worker, because permuting them again takes a while."""
_TICK_SECONDS = 0.1
_SERVER_LOST_SECONDS = 2.0
"""Seconds that a worker waits for `Shutdown` after the loss of a server, which is normal at the end of a
run."""


def main(
    *,
    name: str,
    coordinator: str,
    work: str,
    arguments: Mapping[str, object],
    endpoint_settings: Mapping[str, Any],
    threads: int = 1,
    silent_seconds: float = 10.0,
    device: str = "cpu",
    place: int = 0,
) -> int:
    """Run the worker ``name`` until its coordinator at the address ``coordinator`` shuts it down.

    ``endpoint_settings`` are the fields of `EndpointSettings`; ``silent_seconds`` is the maximum time
    without progress in a portion; ``device`` and ``place`` are as for `select_device`. The token is in the
    environment. Raise UserError if the work does not exist, MachineError if the coordinator exits first or a
    portion hangs.
    """
    given = name, coordinator, work, arguments, endpoint_settings, threads, device, place
    with worker_context(*given) as (made, messenger):
        worker_thread = cast(Work, made)  # the name of the work promises it
        worker = WorkerProcess(worker_thread, messenger, name, silent_seconds)
        signal.signal(signal.SIGTERM, lambda *_: worker.leave("SIGTERM"))
        worker.run()
    return 0


class WorkerProcess:
    """One worker process, from its joining to its end."""

    def __init__(self, work: Work, messenger: Messenger, name: str, silent_seconds: float) -> None:
        """``silent_seconds``: maximum time without progress in a portion."""
        self._work, self._messenger, self._name = work, messenger, name
        parameters, self._layout = parameters_of(work)
        self._parameters: Array = parameters.numpy()
        self._initial = self._parameters.copy()
        self._sums = ArraySums(self._parameters.size, self._parameters.dtype)
        self._lock = threading.Lock()
        """Lock of the state machine."""
        address = messenger.endpoint.address
        self._machine: Machine[Array] = Machine(
            name, address, work.samples, self._parameters.size, self._sums
        )
        self._worker_thread = WorkerThread()
        self._hang_detector = WorkerHangDetector(name, self._worker_thread, work, silent_seconds)
        assert not isinstance(messenger.endpoint, MultiEndpoint), "a worker uses one network"
        self._exchanges = WorkerCollectives(messenger.endpoint, name)
        self._pulls: VectorPulls | None = None
        self._points: PointAssembly | None = None
        self._permutation: PortionPermutation | None = None
        self._samples: dict[int, array[int]] = {}
        self._transfer: FetchTask | ReduceTask[Array] | None = None
        """Fetch or reduction in progress."""
        self._leave_reason: str | None = None
        self._validation: tuple[int, int, int] | None = None
        """(session, validation, run) of the last request for held-out samples."""
        self._validation_reply: m.Validated | None = None
        """Result of that request."""
        self._ticked = 0.0
        self._servers: set[str] = set()
        self._lost_server: tuple[float, str] | None = None
        """(time, name) of the loss of a server."""
        messenger.endpoint.watch(self._worker_thread.fileno())

    def run(self) -> None:
        """Work until the coordinator shuts the worker down; raise MachineError if the coordinator or a server
        is lost, or a portion hangs."""
        work, dtype, size = self._work, str(self._parameters.dtype), self._parameters.size
        made = WorkerReady(self._name, dtype, size, work.samples, work.flops, work.held_out, self._layout)
        self._messenger.send(m.COORDINATOR, made)
        while self._machine.state is not WorkerState.GONE:
            self._tick(time.monotonic())
            self._attend(
                self._messenger.receive(HELD_SECONDS if self._exchanges.has_unsent else _TICK_SECONDS)
            )
            self._exchanges.proceed()
        self._worker_thread.close()

    def leave(self, reason: str) -> None:
        """Leave once all results are settled; may be called by a signal handler."""
        self._leave_reason = reason

    # --- events ---

    def _attend(self, event: object) -> None:
        """Handle an event. No reference to it remains afterwards except kept values."""
        match event:
            case Received(sender, message):
                self._on_message(sender, message)
            case Ready():
                self._worker_thread.run_callbacks()
            case Lost(peer, why) if peer == m.COORDINATOR:
                raise MachineError(f"{self._name} lost its coordinator ({why}); resume the run")
            case Lost(peer, why):
                self._exchanges.on_lost(event)
                if peer in self._servers:
                    self._lost_server = self._lost_server or (time.monotonic(), f"{peer} ({why})")
            case Piece():
                self._exchanges.receive(event)
            case _:
                pass

    def _on_message(self, sender: str, message: AnyMessage) -> None:
        match message:
            case GetParameters():
                self._messenger.send(m.COORDINATOR, Parameters((raw(self._initial),)))
            case PeerAddresses(addresses):
                for name, address in addresses:
                    if name != self._name:
                        self._messenger.endpoint.connect(name, address)
            case m.Pulled():
                if self._pulls is not None:
                    self._pulls.on_pulled(message)
            case m.Validate():
                self._validate(message)
            case _ if isinstance(message, m.ToWorker):
                self._receive(sender, message)
            case _:
                pass

    def _receive(self, sender: str, message: m.ToWorker) -> None:
        with self._lock:
            before = self._machine.session
            sends = self._machine.receive(sender, message, time.monotonic())
            is_new = self._machine.session not in (0, before)
        if is_new:
            assert isinstance(message, m.Welcome), "a session must begin with Welcome"
            self._on_welcome(message)
        self._deliver(sends)
        self._drop_obsolete(message)
        self._start_next()

    def _drop_obsolete(self, message: m.ToWorker) -> None:
        """Abandon a fetch or reduction that another attempt replaces; a grant shows that the reduction has
        failed."""
        task, is_void = self._transfer, False
        match message:
            case m.StartEvaluation(evaluation=number, attempt=attempt) if isinstance(task, FetchTask):
                is_void = (number, attempt) > (task.begin.evaluation, task.begin.attempt)
            case m.Reduce(attempt=attempt) if isinstance(task, ReduceTask):
                is_void = attempt > task.reduce.attempt
            case m.StartEvaluation() | m.Grants():
                is_void = isinstance(task, ReduceTask)
            case m.EndEvaluation() | m.SessionExpired():
                is_void = task is not None
            case _:
                pass
        if is_void:
            if self._points is not None:
                self._points.abandon()
            self._on_disconnect("")

    def _on_welcome(self, welcome: m.Welcome) -> None:
        """Begin a session."""
        self._servers.update(dict(welcome.servers))
        for name, address in welcome.servers:
            self._messenger.endpoint.connect(name, address)
        self._sums.set_shards(welcome.shards)
        self._pulls = VectorPulls(welcome.shards, self._parameters.dtype, self._messenger.send)
        self._points = PointAssembly(welcome, self._parameters.dtype, self._pulls, self._exchanges)
        dealing = PortionPermutation(welcome.seed, welcome.samples, welcome.portion_size)
        if dealing != self._permutation:
            self._permutation, self._samples = dealing, {}

    def _tick(self, now: float) -> None:
        if now - self._ticked < _TICK_SECONDS:
            return
        self._ticked = now
        self._hang_detector.check(now)
        if self._lost_server is not None and now - self._lost_server[0] > _SERVER_LOST_SECONDS:
            raise MachineError(f"{self._name} lost {self._lost_server[1]}; check the network between them")
        with self._lock:
            sends = self._machine.tick(now)
            if self._leave_reason is not None:
                sends += self._machine.leave(self._leave_reason)
                self._leave_reason = None
            welcome = self._machine.welcome
        self._deliver(sends)
        if self._pulls is not None and welcome is not None:
            self._pulls.resend(now, welcome.retry_seconds)

    def _deliver(self, sends: Sequence[m.Send]) -> None:
        for each in sends:
            self._messenger.send(each.to, each.message)

    # --- tasks ---

    def _start_next(self) -> None:
        """Start the next task if none is running; on the message thread."""
        with self._lock:
            task = self._machine.task() or self._machine.reduction()
        self._begin(task)

    def _begin(self, task: Task[Array] | None) -> None:
        match task:
            case PortionTask():
                self._worker_thread.submit(lambda: self._compute(task))
            case FetchTask():
                self._fetch(task)
            case ReduceTask():
                self._reduce(task)
            case None:
                pass

    def _compute(self, task: PortionTask[Array] | None) -> None:
        """Compute portions as long as any are granted; on the computing thread."""
        while task is not None:
            result = self._portion(task)
            self._worker_thread.step_finished()
            with self._lock:
                now = time.monotonic()
                if isinstance(result, m.PortionResult):
                    sends = self._machine.computed(result, now)
                else:
                    sends = self._machine.computed_not(result, now)
                following = self._machine.task()
            if sends:
                self._worker_thread.call_in_main(lambda sends=sends: self._deliver(sends))  # type: ignore[misc]  # mypy and defaults
            task = following if isinstance(following, PortionTask) else None
            if task is None:
                self._worker_thread.call_in_main(lambda other=following: self._begin(other))  # type: ignore[misc]  # the same

    def _portion(self, task: PortionTask[Array]) -> m.PortionResult | str:
        """Return the sums of a portion, or the error as text."""
        began, portion = time.perf_counter(), task.grant.portion
        try:
            into = None if task.total is None else torch.from_numpy(task.total)
            found = self._work.add(self._samples_of(portion), into)
            details = tuple(sorted((name, float(value)) for name, value in found.details.items()))
            value, samples = float(found.value), int(found.samples)
        except Exception as error:
            return describe_exception(error)
        return m.PortionResult(portion, samples, value, details, time.perf_counter() - began)

    def _samples_of(self, portion: int) -> array[int]:
        assert self._permutation is not None, "a portion was granted outside of a session"
        found = self._samples.get(portion)
        if found is None:
            found = self._permutation.samples_of(portion)
            if (len(self._samples) + 1) * self._permutation.portion <= _CACHED_SAMPLES:
                self._samples[portion] = found
        return found

    def _fetch(self, task: FetchTask) -> None:
        points = self._points
        assert points is not None, "an evaluation began outside of a session"

        def arrived() -> None:
            self._transfer = None
            self._worker_thread.submit(set_parameters)

        def set_parameters() -> None:
            point, digests = points.make(task.begin)
            np.copyto(self._parameters, point)
            self._worker_thread.call_in_main(lambda: done(digests))

        def done(digests: tuple[int, ...]) -> None:
            with self._lock:
                sends = self._machine.fetched(digests, time.monotonic())
            self._deliver(sends)
            self._start_next()

        self._transfer = task
        points.fetch(task.begin, arrived, self._on_disconnect)

    def _on_disconnect(self, lost: str) -> None:
        self._transfer = None
        with self._lock:
            sends = self._machine.on_disconnect(lost, time.monotonic())
        self._deliver(sends)
        self._start_next()

    def _reduce(self, task: ReduceTask[Array]) -> None:
        reduce = task.reduce

        def done(result: Array) -> None:
            self._transfer = None
            is_first = reduce.plan.members[0] == self._name
            with self._lock:
                sends = self._machine.reduced(result if is_first else None, time.monotonic())
            self._deliver(sends)
            self._start_next()

        self._transfer = task
        self._exchanges.begin(
            reduction_number(reduce.evaluation, reduce.attempt),
            reduce.plan,
            task.values,
            is_broadcast=False,
            on_done=done,
            on_disconnect=self._on_disconnect,
        )

    # --- held-out samples ---

    def _validate(self, request: m.Validate) -> None:
        """Evaluate held-out samples at a vector, between two portions; the point stays unchanged. A repeated
        request is computed once and answered again."""
        key = request.session, request.number, request.run
        if key == self._validation:
            if self._validation_reply is not None:
                self._messenger.send(m.COORDINATOR, self._validation_reply)
            return

        def answered(answer: m.Validated) -> None:
            if key == self._validation:
                self._validation_reply = answer
            self._messenger.send(m.COORDINATOR, answer)

        def measure(point: Array) -> None:
            before = self._parameters.copy()
            np.copyto(self._parameters, point)
            try:
                sums = tuple(self._validate_portion(start, stop) for start, stop in request.portions)
                answer = m.Validated(request.session, request.number, request.run, sums)
            except Exception as error:
                answer = m.Validated(
                    request.session, request.number, request.run, (), describe_exception(error)
                )
            finally:
                np.copyto(self._parameters, before)
            self._worker_thread.call_in_main(lambda: answered(answer))

        if self._pulls is None or request.session != self._machine.session:
            return
        self._validation, self._validation_reply = key, None
        self._pulls.fetch(
            session=request.session,
            evaluation=0,
            name=request.at,
            now=time.monotonic(),
            on_complete=lambda point: self._worker_thread.submit(lambda: measure(point)),
            failed=lambda why: answered(m.Validated(request.session, request.number, request.run, (), why)),
        )

    def _validate_portion(self, start: int, stop: int) -> m.HeldOutSum:
        """Evaluate a portion of the held-out samples; on the computing thread."""
        found = self._work.validate(start, stop)
        self._worker_thread.step_finished()
        return m.HeldOutSum(found.value, found.samples, found.details)
