"""Startup of a cluster: workers build their work, servers receive their shards and the initial parameters.

Knows: the order of the steps, the arguments of each process. Does not know: evaluations.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from cotswold import wire as m
from cotswold.batch.core.coordinator import Coordinator
from cotswold.batch.core.settings import EvaluationSettings
from cotswold.batch.runtime.coordinator_loop import BatchCoordinator
from cotswold.batch.runtime.reduction_planner import ReductionPlanner
from cotswold.errors import MachineError, UserError
from cotswold.host import Call, Processes, Token
from cotswold.host.token import VARIABLE
from cotswold.processes.cluster_settings import ClusterSettings
from cotswold.processes.coordinator_loop import CoordinatorLoop, OnEvent
from cotswold.processes.endpoint_settings import EndpointSettings
from cotswold.processes.process_group import ProcessGroup
from cotswold.processes.programs import PROGRAMS
from cotswold.shards.core.permutation import PortionPermutation
from cotswold.shards.runtime.arithmetic import Array, raw
from cotswold.shards.runtime.layout import split_into_shards
from cotswold.shards.runtime.work import TensorSlot
from cotswold.transport import Endpoint, Ready
from cotswold.wire.lifecycle import GetParameters, Parameters, ServerReady, WorkerReady
from cotswold.wire.messenger import AnyMessage, Messenger, Received

POINT = "x"
"""Name of the vector with the parameters."""
_FLUSH_SECONDS = 1.0
_MEMORY_BYTES_PER_SECOND = 1e9
"""Rate at which a server receives and adds sums (measured: 1 to 2 GB/s per core)."""
_MIN_BYTES_PER_SECOND = 1e7
"""Lowest accepted rate at which a server receives a vector."""


@dataclass(frozen=True)
class WorkDescription:
    """The workers' task and the place of its output."""

    work: str
    """Function that builds the work, as ``"module:function"``."""
    arguments: Mapping[str, object]
    logs: Path | None
    """Folder for the output of the processes, one file each; None for this process's output."""
    host: str | None
    """Address at which other machines reach this one."""


@dataclass(frozen=True)
class StartedProcesses:
    """Running processes before the initial parameters are written."""

    work: WorkerReady
    shards: tuple[m.Shard, ...]
    servers: tuple[str, ...]
    parameters: Array
    """The initial parameters."""


@dataclass(frozen=True)
class StartedCluster:
    """A running cluster."""

    coordinator: BatchCoordinator
    work: WorkerReady
    shards: tuple[m.Shard, ...]
    servers: tuple[str, ...]
    permutation: PortionPermutation


class Startup:
    """One startup; `open` executes it."""

    role, kind = "worker", "worker"
    """Program of the computing processes, and their kind in messages."""

    def __init__(
        self,
        settings: ClusterSettings,
        task: WorkDescription,
        processes: Processes,
        token: Token,
        endpoint: Endpoint,
        on_event: OnEvent,
    ) -> None:
        self._settings, self._task, self._token = settings, task, token
        self._endpoint_settings = EndpointSettings.of(settings, task.host).as_dict()
        self._endpoint, self._on_event = endpoint, on_event
        self._messenger = self._make_messenger()
        self.process_group = ProcessGroup(
            processes,
            endpoint,
            self._worker,
            restarts=settings.restarts,
            ranks=settings.ranks,
            kind=self.kind,
        )
        self._deadline = time.monotonic() + settings.start_seconds
        self._works: dict[str, WorkerReady] = {}
        self._joins: list[Received] = []
        self._server_addresses: dict[str, str] = {}
        self._parameters: Array | None = None
        self._parameters_from = ""
        """Name of the worker that must send the initial parameters."""

    def _make_messenger(self) -> Messenger:
        return Messenger(self._endpoint)

    def close(self) -> None:
        """Cancel the startup: stop all processes and close the endpoint."""
        self.process_group.close()
        self._messenger.endpoint.close()

    def open(self) -> StartedCluster:
        """Start everything; raise UserError or MachineError if a process fails."""
        begun = self._start_processes()
        made, shards, names = begun.work, begun.shards, begun.servers
        planner = self._planner(made)
        machine = self._machine(made, shards, names, planner)
        coordinator = BatchCoordinator(
            self._messenger, self.process_group, machine, self._on_event, planner.report_disconnect
        )
        dealing = machine.rules.permutation
        write_vector(coordinator, shards, names, POINT, begun.parameters, self._settings.silent_seconds)
        for received in self._joins:
            assert isinstance(received.message, m.Join)
            coordinator.on_worker_message(received.sender, received.message)
        return StartedCluster(coordinator, made, shards, names, dealing)

    def _start_processes(self) -> StartedProcesses:
        """Start workers and servers, and get the initial parameters."""
        self.process_group.spawn(self._settings.workers)
        self._await("a worker to make its work", lambda: self._works)
        made = next(iter(self._works.values()))
        shards, names = self._start_servers(made)
        self._await("the first parameters", lambda: self._has_parameters(made))
        assert self._parameters is not None, "the parameters are missing"
        return StartedProcesses(made, shards, names, self._parameters)

    def _start_servers(self, made: WorkerReady) -> tuple[tuple[m.Shard, ...], tuple[str, ...]]:
        """Start the servers; return all shards and the names of the servers."""
        names = [f"server-{number}" for number in range(self._settings.servers)]
        item_bytes = np.dtype(made.dtype).itemsize
        layout = [TensorSlot(*one) for one in made.layout]
        shards = split_into_shards(layout, item_bytes, self._settings.shard_bytes, names)
        names = sorted({one.server for one in shards}, key=names.index)
        self._check_messages(shards, item_bytes)
        for name in names:
            self.process_group.start(self._server(name, shards, made), spread=self._settings.spread_servers)
        self._await("the parameter servers", lambda: len(self._server_addresses) == len(names))
        return shards, tuple(names)

    def _check_messages(self, shards: Sequence[m.Shard], item_bytes: int) -> None:
        """Raise UserError if a message with all of a server's shards is too long."""
        counts: Counter[str] = Counter()
        for one in shards:
            counts[one.server] += (one.stop - one.start) * item_bytes
        most, bound = max(counts.values()), self._endpoint.message_bytes
        if most > bound:
            raise UserError(
                f"the parameters have {sum(counts.values())} bytes: with {len(counts)} parameter servers a "
                f"message would have {most} bytes, at most {bound} are allowed; increase cluster.servers"
            )

    # --- arguments of processes ---

    def _worker(self, name: str) -> Call:
        made = self._work_arguments(name, self._task.work, self._task.arguments)
        return self._call(name, self.role, {**made, **self._worker_arguments(name)})

    def _work_arguments(self, name: str, work: str, arguments: Mapping[str, object]) -> Mapping[str, object]:
        """Return the arguments of a process that builds a work."""
        return {
            "name": name,
            "coordinator": self._endpoint.address,
            "work": work,
            "arguments": dict(arguments),
            "threads": self._settings.threads,
            "silent_seconds": self._settings.silent_seconds,
            "endpoint_settings": self._endpoint_settings,
        }

    def _worker_arguments(self, name: str) -> Mapping[str, object]:
        """Return further arguments of a worker."""
        return {"device": self._settings.device, "place": self.process_group.slot_of(name)}

    def _server_arguments(self, made: WorkerReady) -> Mapping[str, object]:
        """Return further arguments of the servers."""
        return {}

    def _server(self, name: str, shards: Sequence[m.Shard], made: WorkerReady) -> Call:
        arguments = {
            "name": name,
            "coordinator": self._endpoint.address,
            "shards": [astuple(one) for one in shards if one.server == name],
            "dtype": made.dtype,
            "endpoint_settings": self._endpoint_settings,
            **self._server_arguments(made),
        }
        return self._call(name, "server", arguments)

    def _call(self, name: str, role: str, arguments: Mapping[str, object]) -> Call:
        output = None if self._task.logs is None else self._task.logs / f"{name}.log"
        return Call(name, PROGRAMS[role], arguments, {VARIABLE: self._token.text}, output)

    def _planner(self, made: WorkerReady) -> ReductionPlanner:
        item_bytes = np.dtype(made.dtype).itemsize
        return ReductionPlanner(
            made.size, item_bytes, self.process_group.machine_of, self._settings.link_bits_per_second
        )

    def _machine(
        self, made: WorkerReady, shards: Sequence[m.Shard], names: Sequence[str], planner: ReductionPlanner
    ) -> Coordinator:
        settings = self._settings
        vector_bytes = made.size * np.dtype(made.dtype).itemsize
        rules = EvaluationSettings(
            PortionPermutation(settings.seed, made.samples, settings.portion_size),
            made.size,
            pushes=settings.point_transfer == "sandblaster" or settings.deterministic,
            tree=settings.deterministic,
            flush_seconds=flush_seconds(vector_bytes, settings, is_one_host=self._task.host is None),
            backup_tasks=settings.backup_tasks,
            deadline_factor=settings.deadline_factor,
            silent_seconds=settings.silent_seconds,
            no_worker_seconds=settings.alone_seconds,
        )
        servers = [(name, self._server_addresses[name]) for name in names]
        return Coordinator(rules, shards, servers, planner, time.monotonic())

    # --- messages of processes ---

    def _has_parameters(self, made: WorkerReady) -> bool:
        if self._parameters is None and not self.process_group.is_watched(self._parameters_from):
            alive = [name for name in self._works if self.process_group.is_watched(name)]
            if alive:
                self._parameters_from = alive[0]
                self._messenger.send(self._parameters_from, GetParameters())
        return self._parameters is not None and self._parameters.size == made.size

    def _await(self, subject: str, holds: Callable[[], object]) -> None:
        while not holds():
            match self._messenger.receive(0.1):
                case Received() as received:
                    self._on_message(received)
                case Ready(descriptor):
                    self._on_descriptor_ready(descriptor)
                case _:
                    pass
            now = time.monotonic()
            self.process_group.tick(now)
            if now > self._deadline:
                raise MachineError(
                    f"the cluster waited {self._settings.start_seconds:g} s for {subject}; read the output "
                    "of the processes, or increase the time"
                )

    def _on_message(self, received: Received) -> None:
        message: AnyMessage = received.message
        match message:
            case WorkerReady(name):
                self._works[name] = message
            case m.Join():
                self._joins.append(received)
            case ServerReady(name, address):
                self._server_addresses[name] = address
            case Parameters((buffer,)) if (
                isinstance(buffer, bytes | memoryview) and received.sender in self._works
            ):
                self._parameters = np.frombuffer(buffer, self._works[received.sender].dtype).copy()
            case _:
                pass

    def _on_descriptor_ready(self, descriptor: int) -> None:
        ended = self.process_group.reap(descriptor, time.monotonic())
        if ended is None:
            return
        self._on_event("exited", {"name": ended.name, "reason": ended.why, "exit_code": ended.code})
        self._works.pop(ended.name, None)
        self._joins = [received for received in self._joins if received.sender != ended.name]
        if ended.code == UserError.exit_code:
            raise UserError(f"{ended.name} {ended.why}")
        if ended.name.startswith("server") or self.process_group.cannot_recover:
            raise MachineError(f"{ended.name} {ended.why}; the cluster cannot start")


def flush_seconds(vector_bytes: int, settings: ClusterSettings, *, is_one_host: bool) -> float:
    """Return the age in seconds at which workers push their sums. A short age limits the loss when a worker
    dies, but pushes may use at most a twentieth of the rate at which the servers' machine can receive."""
    rate = _MEMORY_BYTES_PER_SECOND if is_one_host else settings.link_bits_per_second / 8
    return max(_FLUSH_SECONDS, 20 * settings.workers * vector_bytes / rate)


def write_vector(
    coordinator: CoordinatorLoop,
    shards: Sequence[m.Shard],
    servers: Sequence[str],
    name: str,
    vector: Array,
    silent_seconds: float = 10.0,
) -> None:
    """Set a vector on all servers; raise MachineError if one rejects it, is lost, or is silent for longer
    than ``silent_seconds`` plus the time of the transfer."""
    number, began = time.monotonic_ns(), time.monotonic()
    silent_seconds += vector.nbytes / _MIN_BYTES_PER_SECOND
    errors: dict[str, str | None] = {}

    def hear(message: AnyMessage) -> None:
        if isinstance(message, m.WriteAck) and message.number == number:
            errors[message.server] = message.error

    own: dict[str, list[m.Shard]] = {server: [] for server in servers}
    for one in shards:
        own[one.server].append(one)

    def writes() -> list[m.Send]:
        found = []
        for server in owing():
            numbers = tuple(one.number for one in own[server])
            buffers = tuple(raw(vector[one.start : one.stop]) for one in own[server])
            found.append(m.Send(server, m.Write(number, name, numbers, buffers)))
        return found

    def owing() -> list[str]:
        return [each for each in servers if each not in errors]

    coordinator.deliver(writes())
    coordinator.wait_for_servers(hear, owing, lambda: began, silent_seconds, writes)
    refused = [f"{server}: {error}" for server, error in errors.items() if error is not None]
    if refused:
        raise MachineError(f"the vector {name} cannot be written: {refused[0]}")
