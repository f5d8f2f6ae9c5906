"""The evaluator process: evaluates parameters that it receives, or pulls from the servers.

Knows: the endpoint, two threads, the pulled parameters. Does not know: how parameters are evaluated (its
work), when, the use of the results.

One thread computes; the other has the endpoint, and sends heartbeats while the first is busy. The evaluator
is not part of the training: servers answer its pulls like all others, and no process waits for it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch

from cotswold import wire as m
from cotswold.errors import MachineError
from cotswold.processes.device import compute_on, device_of_this_thread
from cotswold.processes.hang_detector import WorkerHangDetector
from cotswold.processes.worker_context import worker_context
from cotswold.processes.worker_thread import WorkerThread
from cotswold.replicas.work import EvaluationWork
from cotswold.replication.client.routed_messenger import messengers_of
from cotswold.shards.runtime.arithmetic import Array, raw
from cotswold.shards.runtime.chunked_read import shard_groups
from cotswold.transport import Lost, Ready
from cotswold.wire.lifecycle import Evaluate, EvaluateReply, EvaluatorHeartbeat, GetParameters, Parameters
from cotswold.wire.messenger import AnyMessage, Messenger, Received

HEARTBEAT_SECONDS = 1.0
"""Seconds between heartbeats."""

_RETRY_SECONDS = 2.0
"""Seconds after which unanswered pulls are resent."""


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
    controllers: Mapping[str, str] | None = None,
    cluster_run: str = "",
) -> int:
    """Run the evaluator called ``name``, whose coordinator is at the address ``coordinator``.

    The token is in the environment.

    Args:
        endpoint_settings: Fields of `EndpointSettings`.
        silent_seconds: Seconds after which an evaluation without progress hangs.
        device: As for `select_device`.
        controllers: As for `messengers_of`.
        cluster_run: As for `messengers_of`.

    Raises:
        UserError: If there is no such work.
        MachineError: If the coordinator or a server exits first, or an evaluation hangs.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the coordinator ends it
    at = worker_context(
        name,
        coordinator,
        work,
        arguments,
        endpoint_settings,
        threads,
        device,
        make_messenger=messengers_of(name, endpoint_settings, controllers, cluster_run),
    )
    with at as (made, messenger):
        judging = cast(EvaluationWork, made)  # as promised
        EvaluatorProcess(judging, messenger, name, silent_seconds).run()
    return 0


class EvaluatorProcess:
    """One evaluator at work, on one evaluation at a time."""

    def __init__(self, work: EvaluationWork, messenger: Messenger, name: str, silent_seconds: float) -> None:
        """``silent_seconds``: seconds after which an evaluation without progress hangs."""
        self._work, self._messenger, self._name = work, messenger, name
        self._device = device_of_this_thread()
        self._worker_thread = WorkerThread()
        self._hang_detector = WorkerHangDetector(name, self._worker_thread, work, silent_seconds)
        self._vector: Array = np.zeros(0, np.float32)
        self._versions: dict[int, int] = {}
        """Versions of the shards in the vector; they are not pulled again."""
        self._shards: Mapping[int, m.Shard] = {}
        self._request: Evaluate | None = None
        self._missing: dict[str, list[tuple[int, ...]]] = {}
        """Shards that are not pulled yet, by server."""
        self._heartbeat_at = 0.0
        self._pulled_at = 0.0
        """Time of the last pull, sent or answered."""
        messenger.endpoint.watch(self._worker_thread.fileno())

    def run(self) -> None:
        """Evaluate until the coordinator ends the process. Raises MachineError if the coordinator or a
        server is lost or an evaluation hangs, and what the work raises."""
        while True:
            now = time.monotonic()
            self._hang_detector.check(now)
            if now - self._heartbeat_at >= HEARTBEAT_SECONDS:
                self._heartbeat_at = now
                self._messenger.send(m.COORDINATOR, EvaluatorHeartbeat(self._name))
                self._resend_pulls(now)
            self._attend(self._messenger.receive(HEARTBEAT_SECONDS / 4))

    def _attend(self, event: object) -> None:
        """Handle an event; afterwards nothing refers to its buffers but kept copies."""
        match event:
            case Received(sender, message):
                self._on_message(sender, message)
            case Ready():
                self._worker_thread.run_callbacks()
            case Lost(peer, why) if peer == m.COORDINATOR:
                raise MachineError(f"{self._name} lost its coordinator ({why}); resume the run")
            case Lost(peer, why) if peer in self._missing:
                raise MachineError(f"{self._name} lost {peer} ({why}); resume the run")
            case _:
                pass

    def _on_message(self, sender: str, message: AnyMessage) -> None:
        match message:
            case Evaluate() if sender == m.COORDINATOR:
                self._begin(message)
            case GetParameters() if sender == m.COORDINATOR:
                self._messenger.send(m.COORDINATOR, Parameters((raw(self._vector),)))
            case m.PulledNewer() if message.server == sender:
                self._pulled(message)
            case _:
                pass

    def _begin(self, request: Evaluate) -> None:
        if self._request is not None:
            return  # the coordinator resends only to a new process
        self._request, self._shards = request, {shard.number: shard for shard in request.shards}
        size = max(shard.stop for shard in request.shards)
        if self._vector.shape != (size,) or self._vector.dtype != np.dtype(request.dtype):
            self._vector, self._versions = np.zeros(size, request.dtype), {}
        if request.buffers:
            (buffer,) = request.buffers
            assert isinstance(buffer, bytes | bytearray | memoryview)
            self._vector[:], self._versions = np.frombuffer(buffer, request.dtype), {}
            self._worker_thread.submit(lambda: self._compute(request))
            return
        self._missing = shard_groups(request.shards, self._vector.itemsize)
        self._messenger.connect(request.servers)
        for name, _ in request.servers:
            if name in self._missing:
                self._pull(request, name)

    def _resend_pulls(self, now: float) -> None:
        """Resend pulls: the server of a bucket may have been lost with the request."""
        if self._request is not None and self._missing and now - self._pulled_at > _RETRY_SECONDS:
            for name in self._missing:
                self._pull(self._request, name)

    def _pull(self, request: Evaluate, server: str) -> None:
        self._pulled_at = time.monotonic()
        shards = self._missing[server][0]
        versions = tuple(self._versions.get(number, -1) for number in shards)
        self._messenger.send(server, m.PullNewer(request.run, 0, request.number, shards, versions))

    def _pulled(self, pulled: m.PulledNewer) -> None:
        judge, groups = self._request, self._missing.get(pulled.server)
        if judge is None or groups is None or pulled.number != judge.number:
            return
        if pulled.error is not None:
            raise MachineError(f"{self._name} cannot pull from {pulled.server}: {pulled.error}")
        for number, version, buffer in zip(pulled.shards, pulled.versions, pulled.buffers, strict=True):
            assert isinstance(buffer, bytes | bytearray | memoryview)
            shard = self._shards[number]
            self._vector[shard.start : shard.stop] = np.frombuffer(buffer, self._vector.dtype)
            self._versions[number] = version
        del groups[0]
        if groups:
            self._pull(judge, pulled.server)
            return
        del self._missing[pulled.server]
        if not self._missing:
            self._worker_thread.submit(lambda: self._compute(judge))

    def _compute(self, request: Evaluate) -> None:
        """Evaluate; runs in the computing thread."""
        compute_on(self._device)
        began = time.perf_counter()
        means = self._work.means(torch.from_numpy(self._vector))
        self._worker_thread.step_finished()
        found = EvaluateReply(
            self._name, request.number, tuple(sorted(means.items())), time.perf_counter() - began
        )
        self._worker_thread.call_in_main(lambda: self._reply(found))

    def _reply(self, reply: EvaluateReply) -> None:
        self._request = None
        self._messenger.send(m.COORDINATOR, reply)
