"""A replica process: creates its work, and executes its state machine with this process's memory and
sockets.

Knows: the endpoint, the work, two threads, clocks. Does not know: when to step, pull and push
(`paramserver.core.replica`).

Fetching, computing and pushing overlap (Dean et al. 2012, section 4.1). One thread computes, and takes the
next step by itself. The other has the endpoint, with pulls and pushes in flight at once: neither waits for
the other, and no step waits for a message unless it needs one.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from cotswold import wire as m
from cotswold.errors import MachineError
from cotswold.paramserver.core.rank_fanout import RankFanout, rank_name
from cotswold.paramserver.core.replica import Replica, ReplicaState
from cotswold.paramserver.core.replica_session import Pace, StepTask
from cotswold.processes.device import compute_on
from cotswold.processes.endpoint_settings import EndpointSettings
from cotswold.processes.hang_detector import WorkerHangDetector
from cotswold.processes.worker_context import worker_context
from cotswold.processes.worker_thread import WorkerThread
from cotswold.replicas.accumulation import GROWS, Accumulation, PushedBytes, StepSettings
from cotswold.replicas.vectors import vectors_like
from cotswold.replicas.work import RankedWork, ReplicaEndpoint, ReplicaWork, Steps
from cotswold.replication.client.routed_messenger import messengers_of
from cotswold.shards.runtime.arithmetic import Array, raw
from cotswold.shards.runtime.parameters import parameters_of, products_of
from cotswold.shards.runtime.work import FedWork, PortionSum, samples_of
from cotswold.transport import Lost, Ready
from cotswold.wire.lifecycle import (
    ActivityReport,
    GetParameters,
    Parameters,
    RankLost,
    RankReady,
    StepMetrics,
    WorkerReady,
)
from cotswold.wire.messenger import AnyMessage, Messenger, PeerMoved, Received

_TICK_SECONDS = 0.05
_METRICS_SECONDS = 0.1
"""Seconds between two reports of computed steps."""
_ACTIVITY_SECONDS = 1.0
"""Seconds after which an unchanged state is reported again."""
_PEER_LOST_SECONDS = 2.0
"""Seconds to wait for the dismissal after a server is lost; a normal end dismisses the replica."""
_STEPS_AHEAD = 4
"""Steps whose samples are requested in advance, at most."""


def main(
    *,
    name: str,
    coordinator: str,
    work: str,
    arguments: Mapping[str, object],
    endpoint_settings: Mapping[str, Any],
    pace: Mapping[str, Any],
    stepping: Mapping[str, Any],
    threads: int = 1,
    silent_seconds: float = 10.0,
    device: str = "cpu",
    place: int = 0,
    controllers: Mapping[str, str] | None = None,
    cluster_run: str = "",
) -> int:
    """Run the replica called ``name``, whose coordinator is at the address ``coordinator``.

    The token is in the environment.

    Args:
        endpoint_settings: Fields of `EndpointSettings`.
        pace: Fields of `Pace`.
        stepping: Fields of `StepSettings`.
        silent_seconds: Seconds after which a step without progress hangs.
        device: As for `select_device`.
        place: As for `select_device`.
        controllers: As for `messengers_of`.
        cluster_run: As for `messengers_of`.

    Raises:
        UserError: If there is no such work.
        MachineError: If the coordinator exits first, or a step hangs.
    """
    began = name, coordinator, work, arguments, endpoint_settings, threads, device, place
    with worker_context(
        *began, make_messenger=messengers_of(name, endpoint_settings, controllers, cluster_run)
    ) as (
        made,
        messenger,
    ):
        learning = cast(ReplicaWork | RankedWork, made)  # as promised
        paced = Pace(**pace), StepSettings(**stepping)
        role = ReplicaProcess(
            learning, messenger, name, *paced, EndpointSettings(**endpoint_settings), silent_seconds
        )
        signal.signal(signal.SIGTERM, lambda *_: role.leave("it was asked to end"))
        role.run()
    return 0


class ReplicaProcess:
    """One replica's process, from joining to its end."""

    def __init__(
        self,
        work: ReplicaWork | RankedWork,
        messenger: Messenger,
        name: str,
        pace: Pace,
        stepping: StepSettings,
        endpoint_settings: EndpointSettings,
        silent_seconds: float,
    ) -> None:
        """``endpoint_settings`` also applies to its other ranks, if any; a step without progress for
        ``silent_seconds`` hangs."""
        self._work, self._messenger, self._name = work, messenger, name
        self._schedule = stepping.by_samples(work.samples, pace.batch)
        parameters, self._layout = parameters_of(work)
        self._device = parameters.device
        self._initial: Array = parameters.to("cpu", copy=True).numpy()
        self._batch = pace.batch
        samples = pace.batch * pace.n_push * min(pace.stretch, GROWS)
        self._accumulation: Steps
        self._ranks: RankFanout | None = None
        self._other_ranks: tuple[str, ...] = ()
        """Names of its other ranks."""
        if isinstance(work, RankedWork):
            self._ranks = RankFanout(name)
            self._other_ranks = tuple(rank_name(name, rank) for rank in range(1, work.ranks))
            meeting = ReplicaEndpoint(
                name, messenger.endpoint.address, endpoint_settings.as_dict(), stepping.own, samples
            )
            self._accumulation = work.connect_ranks(meeting)
        else:
            vectors = vectors_like(parameters)
            told = self._layout, stepping.own, samples, vectors, stepping.beyond
            self._accumulation = Accumulation(work, *told)
        self._absent = set(self._other_ranks)
        """Ranks that have sent no message yet."""
        size = self._initial.size
        self._lock = threading.Lock()
        """Guards the state machine, and the reports of steps."""
        self._machine = Replica(m.Join(name, 0, messenger.endpoint.address, work.samples, size), pace)
        self._worker_thread = WorkerThread()
        self._hang_detector = WorkerHangDetector(name, self._worker_thread, work, silent_seconds)
        self._seed = 0
        self._metrics = StepMetrics(name, 0, 0, 0.0, (), 0.0)
        self._first_metrics: StepMetrics | None = None
        """Report of its first step, sent separately: it tells the run where the loss began."""
        self._leave_reason: str | None = None
        self._ticked = self._reported_at = 0.0
        self._last_activity: tuple[float, object] = (0.0, None)
        """Time and content of the last report of its state."""
        self._servers: set[str] = set()
        self._lost_peer: tuple[float, str] | None = None
        """Time at which a server or a rank was lost, and its name."""
        messenger.endpoint.watch(self._worker_thread.fileno())

    def run(self) -> None:
        """Train until the coordinator dismisses it. Raises MachineError if the coordinator or a server is
        lost or a step hangs, and what the work raises."""
        work, dtype, size = self._work, str(self._initial.dtype), self._initial.size
        while self._absent:
            self._attend(self._messenger.receive(_TICK_SECONDS))
        made = WorkerReady(
            self._name, dtype, size, work.samples, work.flops, 0, self._layout, products_of(work)
        )
        self._messenger.send(m.COORDINATOR, made)
        while self._machine.state is not ReplicaState.GONE:
            self._tick(time.monotonic())
            self._attend(self._messenger.receive(_TICK_SECONDS))
        self._report_progress()
        self._worker_thread.close()

    def leave(self, reason: str) -> None:
        """Leave once its assigned samples count; a signal handler may call it."""
        self._leave_reason = reason

    # --- messages: the endpoint's thread ---

    def _attend(self, event: object) -> None:
        """Handle an event; afterwards nothing refers to its buffers but kept copies."""
        match event:
            case Received(sender, message):
                self._on_message(sender, message)
            case PeerMoved(peer):
                with self._lock:
                    sends = self._machine.resend(peer)
                self._deliver(sends)
            case Ready():
                self._worker_thread.run_callbacks()
            case Lost(peer, why) if peer == m.COORDINATOR:
                raise MachineError(f"{self._name} lost its coordinator ({why}); resume the run")
            case Lost(peer, why) if peer in self._servers or peer in self._other_ranks:
                self._on_peer_lost(f"{peer} ({why})")
            case _:
                pass

    def _on_message(self, sender: str, message: AnyMessage) -> None:
        if isinstance(message, GetParameters):
            self._messenger.send(m.COORDINATOR, Parameters((raw(self._initial),)))
        if isinstance(message, RankReady):
            self._absent.discard(sender)
        if isinstance(message, RankLost) and sender in self._other_ranks:
            self._on_peer_lost(f"{message.server} ({message.why}), as {sender} says")
        if self._ranks is not None and isinstance(message, m.PulledNewer | m.PulledPart):
            pulled = self._ranks.receive(sender, message)
            if pulled is None:
                return
            sender, message = pulled.server, pulled
        if not isinstance(message, m.ToReplica):
            return
        with self._lock:
            before = self._machine.session
            sends = self._machine.receive(sender, message, time.monotonic())
            is_new = self._machine.session not in (0, before)
        if is_new:
            assert isinstance(message, m.SessionOpened), "a session begins with SessionOpened"
            self._enter(message)
        self._deliver(sends)
        with self._lock:
            task = self._machine.task()
        if task is not None:
            self._worker_thread.submit(lambda: self._compute(task))

    def _enter(self, admitted: m.SessionOpened) -> None:
        """Start a session."""
        self._servers.update(dict(admitted.servers))
        self._messenger.connect(admitted.servers)
        if self._ranks is not None and isinstance(self._work, RankedWork):
            self._ranks.enter(self._work.rank_of(admitted.shards))
        for name in self._other_ranks:
            self._messenger.send(name, admitted)
        self._accumulation.lay(admitted.shards)
        self._seed = int(json.loads(admitted.settings)["seed"])

    def _on_peer_lost(self, peer: str) -> None:
        self._lost_peer = self._lost_peer or (time.monotonic(), peer)

    def _tick(self, now: float) -> None:
        if now - self._ticked < _TICK_SECONDS:
            return
        self._ticked = now
        self._hang_detector.check(now)
        if self._lost_peer is not None and now - self._lost_peer[0] > _PEER_LOST_SECONDS:
            raise MachineError(f"{self._name} lost {self._lost_peer[1]}; check the network between them")
        with self._lock:
            sends = self._machine.tick(now)
            if self._leave_reason is not None:
                sends += self._machine.leave(self._leave_reason)
                self._leave_reason = None
        self._deliver(sends)
        if now - self._reported_at >= _METRICS_SECONDS:
            self._reported_at = now
            self._report_progress()

    def _report_progress(self) -> None:
        """Report the steps computed since the last report."""
        with self._lock:
            learnt, self._metrics = self._metrics, StepMetrics(self._name, 0, 0, 0.0, (), 0.0)
            what, waits_for = self._machine.activity
        if learnt.steps:
            self._messenger.send(m.COORDINATOR, learnt)
        now = time.monotonic()
        if (what, waits_for) != self._last_activity[1] or now - self._last_activity[0] >= _ACTIVITY_SECONDS:
            self._last_activity = now, (what, waits_for)
            seconds = max(0.0, now - self._worker_thread.progress_at)
            self._messenger.send(m.COORDINATOR, ActivityReport(self._name, what, waits_for, seconds))

    def _deliver(self, sends: Sequence[m.Send]) -> None:
        if self._ranks is not None:
            sends = [each for send in sends for each in self._ranks.send(send)]
        self._messenger.deliver(sends)

    # --- steps: the computing thread ---

    def _report(self, metrics: StepMetrics) -> None:
        """Send metrics of steps to the coordinator."""
        self._messenger.send(m.COORDINATOR, metrics)

    def _compute(self, task: StepTask | None) -> None:
        """Compute step after step, until none is assigned."""
        compute_on(self._device)
        while task is not None:
            began = time.perf_counter()
            if self._ranks is not None:  # all ranks learn with the step if it is a push's last
                task = replace(task, closes=self._closes(task))
            found = self._step(task)
            closes = task.closes if self._ranks is not None else self._closes(task)
            parts, pushed = self._accumulation.close() if closes else (None, {})
            with self._lock:
                learnt = _added(self._metrics, found, time.perf_counter() - began, pushed)
                self._metrics = replace(learnt, pushes=learnt.pushes + (parts is not None))
                if self._first_metrics is None:
                    self._first_metrics, self._metrics = (
                        self._metrics,
                        StepMetrics(self._name, 0, 0, 0.0, (), 0.0),
                    )
                    self._worker_thread.call_in_main(partial(self._report, self._first_metrics))
                sends = self._machine.finish_step(parts, time.monotonic())
                task = self._machine.task()
                self._worker_thread.step_finished()
            if sends:
                self._worker_thread.call_in_main(lambda sends=sends: self._deliver(sends))  # type: ignore[misc]  # mypy and defaults

    def _closes(self, task: StepTask) -> bool:
        with self._lock:
            stretches = self._machine.can_extend
        return task.closes and not (stretches and self._accumulation.may_grow(self._batch))

    def _step(self, task: StepTask) -> PortionSum:
        samples = samples_of(self._work, self._seed, *task.samples)
        if isinstance(self._work, FedWork) and self._work.is_fed:
            with self._lock:
                coming = self._machine.upcoming(_STEPS_AHEAD)
            self._work.expect([samples, *(samples_of(self._work, self._seed, *each) for each in coming)])
        self._accumulation.begin(task)
        rate = self._schedule.rate(task.rate, task.samples[0])
        return self._accumulation.step(samples, rate, task.opens)


def _added(learnt: StepMetrics, found: PortionSum, seconds: float, pushed: PushedBytes) -> StepMetrics:
    details = Counter(dict(learnt.details))
    details.update({name: float(value) for name, value in found.details.items()})
    total = Counter({(tensor, kind): count for tensor, kind, count in learnt.pushed})
    total.update(pushed)
    return StepMetrics(
        learnt.name,
        learnt.steps + 1,
        learnt.samples + found.samples,
        learnt.value + float(found.value),
        tuple(sorted(details.items())),
        learnt.seconds + seconds,
        tuple((tensor, kind, count) for (tensor, kind), count in sorted(total.items())),
        learnt.pushes,
    )
