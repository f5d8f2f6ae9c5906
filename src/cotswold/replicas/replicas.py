"""Replicas and asynchronous parameter servers: the interface for training.

Knows: how they are started, the requests to servers, when the run cannot continue. Does not know: which
samples count (`paramserver.core.dispatcher`), networks, recipes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import torch
from torch import Tensor

from cotswold import wire as m
from cotswold.batch.runtime.startup import POINT, WorkDescription
from cotswold.errors import MachineError
from cotswold.host import ForkServer, Processes, Token
from cotswold.host.open_files import require_descriptors
from cotswold.paramserver.core.dispatcher_state import DispatcherState
from cotswold.processes.coordinator_loop import OnEvent
from cotswold.processes.endpoint_settings import EndpointSettings
from cotswold.processes.process_group import ProcessGroup
from cotswold.replicas.evaluator import EvaluatorStatus, EvaluatorTask
from cotswold.replicas.monitor import ProcessLocation, ReplicaStatus, ServerStatus
from cotswold.replicas.snapshot import ParameterSnapshot
from cotswold.replicas.startup import ReplicaSettings, ReplicaStartup, StartedReplicas
from cotswold.shards.core.sample_ledger import SampleCounts, SampleLedger
from cotswold.shards.runtime.chunked_read import ChunkedRead, RequestFunction
from cotswold.transport import Endpoint
from cotswold.transport.socket_folder import remove_stale_folders
from cotswold.wire.lifecycle import ServerCounters, StepMetrics
from cotswold.wire.messenger import AnyMessage
from cotswold.wire.ranges import size as size_of

PRELOADED = (
    *("torch", "cotswold.replicas.replica_process", "cotswold.paramserver.runtime.server_process"),
    "cotswold.replicas.evaluator_process",
)
"""Modules that the fork server imports once."""
_LAST_SECONDS = 2.0


@dataclass(frozen=True)
class ReplicasStatus:
    """Status of a run of replicas."""

    state: str
    """State of the coordinator: warming, running, ending or over."""
    epoch: int
    account: SampleCounts
    """Sample counts of all epochs."""
    samples_in_flight: int
    """Samples that are assigned, and not settled."""
    connected_replicas: int
    """Number of replicas in sessions."""
    replicas: tuple[ReplicaStatus, ...]
    """Status of all replicas whose processes run."""
    servers: tuple[ServerStatus, ...]
    sent_bytes: int
    """Bytes sent by the coordinator so far, including shared memory."""
    received_bytes: int
    evaluator: EvaluatorStatus | None = None
    """Status of the evaluator, if there is one."""


class Replicas:
    """Replicas that train; use in a ``with`` statement, or `close`."""

    def __init__(self, opened: StartedReplicas) -> None:
        self._coordinator, self._processes = opened.coordinator, opened.processes
        self._machine = opened.coordinator.machine
        self.vectors = opened.vectors
        """Names of the vectors: the parameters first, then the state of the update rule."""
        self.evaluator = opened.evaluator
        """Evaluates parameters; None if there is no evaluator."""
        self._resources = ExitStack()

    def close_with(self, resources: ExitStack) -> None:
        """Close these resources last."""
        self._resources = resources

    @property
    def size(self) -> int:
        """Length of a vector."""
        return self._processes.work.size

    @property
    def samples(self) -> int:
        """Samples of an epoch."""
        return self._processes.work.samples

    @property
    def flops(self) -> tuple[int, int]:
        """FLOPs of one sample, as the work states them."""
        return self._processes.work.flops

    @property
    def ledger(self) -> SampleLedger:
        """The ledger of samples; read-only."""
        return self._machine.ledger

    @property
    def replicas(self) -> Mapping[str, int]:
        """Process numbers of the running replicas, by name."""
        process_group = self._coordinator.process_group
        return {name: process_group.pid_of(name) for name in process_group.workers}

    @property
    def servers(self) -> Mapping[str, int]:
        """Process numbers of the running parameter servers, by name."""
        process_group = self._coordinator.process_group
        return {
            name: process_group.pid_of(name)
            for name in self._coordinator.servers
            if process_group.is_watched(name)
        }

    @property
    def is_over(self) -> bool:
        """True if the last epoch is over, and all assigned samples are settled."""
        return self._machine.state is DispatcherState.FINISHED

    def status(self) -> ReplicasStatus:
        """The present status."""
        traffic = self._coordinator.messenger.endpoint.traffic
        ledger = self._machine.ledger
        return ReplicasStatus(
            self._machine.state.value,
            ledger.epoch,
            ledger.total,
            ledger.open,
            len(self._machine.members),
            self._replica_statuses(),
            self._server_statuses(),
            traffic.sent_bytes + traffic.sent_shared_bytes,
            traffic.received_bytes + traffic.received_shared_bytes,
            None if self.evaluator is None else self.evaluator.status(),
        )

    def silence_text(self) -> str:
        """The processes that do not answer, and for how long, in words; empty if all answer."""
        return self._coordinator.silence_text(time.monotonic())

    @property
    def server_timeout(self) -> float:
        """Seconds that servers may stay silent before the run ends."""
        return self._coordinator.server_timeout

    def call_on_tick(self, on_tick: Callable[[], None]) -> None:
        """Call a function several times a second, also while waiting; it must not block."""
        self._coordinator.on_tick = on_tick

    def _replica_statuses(self) -> tuple[ReplicaStatus, ...]:
        members, now = self._machine.members, time.monotonic()
        watching, process_group = self._coordinator.monitor, self._coordinator.process_group
        found = []
        for name in sorted(process_group.workers, key=lambda each: (len(each), each)):
            session = members.session(name)
            in_hand = 0 if session is None else size_of(self._machine.ledger.open_of(session))
            heard = 0.0 if session is None else members.of[session].last_heartbeat
            place = ProcessLocation(name, process_group.machine_of(name), process_group.pid_of(name))
            found.append(watching.replica(place, in_hand, heard, now))
        return tuple(found)

    def _server_statuses(self) -> tuple[ServerStatus, ...]:
        watching, process_group, now = (
            self._coordinator.monitor,
            self._coordinator.process_group,
            time.monotonic(),
        )
        shards = Counter(one.server for one in self._processes.shards)
        return tuple(
            watching.server(_location_of(process_group, name), shards[name], now)
            for name in self._coordinator.servers
            if process_group.is_watched(name) or self._coordinator.outlived
        )

    def proceed(self, seconds: float) -> list[StepMetrics]:
        """Train for ``seconds``, or to the end; return the steps computed meanwhile, whether they counted or
        not.

        Raises ClusterFailedError if the run cannot continue: a server is lost, or every replica.
        """
        deadline = time.monotonic() + seconds
        self._coordinator.wait(lambda: bool(self.is_over or time.monotonic() >= deadline))
        learnt, self._coordinator.learnt = self._coordinator.learnt, []
        return learnt

    def finish(self) -> list[StepMetrics]:
        """Once the run is over, wait for the replicas to exit, and return their last steps."""
        assert self.is_over, "the run is over"
        deadline = time.monotonic() + _LAST_SECONDS
        self._coordinator.wait(lambda: not self.replicas or time.monotonic() >= deadline)
        return self.proceed(0.0)

    def pause(self) -> None:
        """Assign no more samples, and wait until all are settled. The vectors then contain exactly the
        samples that count, and do not change. Raises as `proceed`.

        Samples that some servers have and others lack are assigned first, until all servers have them. Once
        the training is over nothing is assigned: `snapshot` counts such samples as torn.
        """
        self._machine.is_paused, ledger = True, self._machine.ledger
        self._coordinator.wait(lambda: self.is_over or not (ledger.open or ledger.divided))

    def resume(self) -> None:
        """Assign samples again."""
        self._machine.is_paused = False

    def hire(self, count: int) -> None:
        """Start ``count`` more replicas; they join while others train."""
        self._coordinator.process_group.spawn(count)

    def read(self, name: str = POINT) -> Tensor:
        """A vector as it is on the servers now; raises ClusterFailedError if a server is lost or does not
        answer."""
        return torch.from_numpy(self._read(name, lambda shards: m.Pull(0, 0, name, shards)).vector)

    def _read(self, name: str, request: RequestFunction) -> ChunkedRead:
        pieces = ChunkedRead(self._processes.shards, name, self._processes.work.dtype, self.size, request)
        self._coordinator.read(pieces, self._machine.rules.silent_seconds)
        return pieces

    # --- snapshots ---

    def snapshot(self) -> ParameterSnapshot:
        """The state of the run while no samples are open: paused, or over."""
        versions: dict[int, int] = {}
        while len(versions) < len(self._processes.shards):  # some may be moving to another server
            self._coordinator.step(0.0)
            versions |= dict(each for counts in self.count() for each in counts.versions)
        self._machine.ledger.tear()  # servers may have lost their memory after the end
        return self._snapshot(self.ledger, {name: self.read(name) for name in self.vectors}, versions)

    def begin_checkpoint(self) -> bool:
        """Have servers freeze a state while replicas train; `is_frozen` becomes True when they have.
        Returns False if a checkpoint is in progress, or the training ends."""
        if not self._machine.may_begin_checkpoint:
            return False
        self._machine.begin_checkpoint()
        return True

    @property
    def is_frozen(self) -> bool:
        """True if all servers have frozen the state of a checkpoint, which can be taken."""
        return self._machine.frozen_ledger is not None

    def take_checkpoint(self) -> ParameterSnapshot:
        """Return the frozen state while replicas train. Raises as `proceed`."""
        assert self.is_frozen, "a checkpoint is taken once it is frozen"
        while True:
            number = self._machine.checkpoint
            try:
                vectors, versions = self._read_frozen(number)
            except MachineError:
                if not self._restarted_checkpoint(number):
                    raise
                self._coordinator.wait(lambda: self.is_frozen)
            else:
                return self._snapshot(self._machine.take_checkpoint(), vectors, versions)

    def _read_frozen(self, number: int) -> tuple[dict[str, Tensor], dict[int, int]]:
        vectors, versions = dict[str, Tensor](), dict[int, int]()
        for name in self.vectors:
            pieces = self._read(name, partial(m.PullFrozen, number, name))
            vectors[name], versions = torch.from_numpy(pieces.vector), pieces.versions
        return vectors, versions

    def _restarted_checkpoint(self, number: int) -> bool:
        """True if a server has lost its frozen state, as the next order shows."""
        deadline = time.monotonic() + self._machine.rules.silent_seconds
        while self._machine.checkpoint == number and time.monotonic() < deadline:
            self._coordinator.step(self._coordinator.tick_seconds)
        return self._machine.checkpoint > number

    def _snapshot(
        self, ledger: SampleLedger, vectors: Mapping[str, Tensor], versions: Mapping[int, int]
    ) -> ParameterSnapshot:
        by_number = tuple(versions[shard.number] for shard in self._processes.shards)
        return ParameterSnapshot(ledger, vectors, by_number, self._machine.counters)

    @property
    def are_outlived(self) -> bool:
        """True if the servers are those of a standalone cluster."""
        return self._coordinator.outlived

    def count(self) -> tuple[ServerCounters, ...]:
        """The counts of each server since the run began; raises ClusterFailedError if a server is lost."""
        counts: dict[str, ServerCounters] = {}

        def hear(message: AnyMessage) -> None:
            if isinstance(message, ServerCounters):
                counts[message.server] = message

        coordinator, asked = self._coordinator, list(self._coordinator.servers)

        def owing() -> list[str]:
            here = set(coordinator.servers)
            return [name for name in asked if name in here and name not in counts]

        def asking() -> list[m.Send]:
            return [m.Send(name, cast(m.Message, coordinator.counters_request)) for name in owing()]

        coordinator.deliver(asking())
        coordinator.wait_for_servers(hear, owing, lambda: 0.0, inf, asking)
        return tuple(counts[name] for name in asked if name in counts)

    def close(self) -> None:
        """End all processes."""
        self._coordinator.close()
        self._resources.close()
        remove_stale_folders()  # folders of killed replicas

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _location_of(process_group: ProcessGroup, name: str) -> ProcessLocation:
    """Location of a server; unknown for a standalone cluster."""
    if not process_group.is_watched(name):
        return ProcessLocation(name, "a cluster", 0)
    return ProcessLocation(name, process_group.machine_of(name), process_group.pid_of(name))


def open_replicas(
    settings: ReplicaSettings,
    work: str,
    arguments: Mapping[str, object],
    *,
    snapshot: ParameterSnapshot | None = None,
    vectors: Mapping[str, Tensor] | None = None,
    evaluator: EvaluatorTask | None = None,
    processes: Processes | None = None,
    token: Token | None = None,
    host: str | None = None,
    logs: Path | None = None,
    on_event: OnEvent = lambda kind, more: None,
) -> Replicas:
    """Start replicas and parameter servers; return when the first parameters are on the servers.

    Each replica calls ``work`` (``"module:function"``) with ``arguments`` (JSON values), which returns a
    `ReplicaWork`. Other arguments are as for `open_cluster`.

    Args:
        snapshot: State of a run to continue, on any number of replicas and servers.
        vectors: Initial vectors of a new run, by name.
        evaluator: Work of a separate process that evaluates parameters.
    """
    require_descriptors(settings.processes.members + (evaluator is not None))
    with ExitStack() as opened:
        token = token or Token.new()
        resources = ExitStack()
        opened.push(resources)
        if processes is None:
            own = ForkServer((*PRELOADED, work.partition(":")[0]))
            resources.callback(own.close)
            processes = own
        endpoint_settings = EndpointSettings.of(settings.processes, host)
        endpoint = Endpoint(
            token,
            m.COORDINATOR,
            host=host,
            ports=endpoint_settings.one_of_ports,
            encrypt=endpoint_settings.encrypt,
            lost_seconds=endpoint_settings.lost_seconds,
        )
        opened.callback(endpoint.close)
        task = WorkDescription(work, arguments, logs, host)
        opening = ReplicaStartup(
            *(settings, task, processes, token, endpoint, on_event),
            *(snapshot, vectors or {}, evaluator, resources),
        )
        opened.callback(opening.close)
        replicas = Replicas(opening.open_replicas())
        replicas.close_with(resources)
        opened.pop_all()
        return replicas
