"""Parameter servers for clients with their own samples: startup, service, checkpoints, end.

Knows: how they are started, which clients may connect, when the service cannot continue. Does not know:
modules, checkpoint files, what clients compute.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from cotswold import wire as m
from cotswold.batch.runtime.startup import POINT, Startup, WorkDescription, write_vector
from cotswold.errors import CotswoldError, MachineError, UserError
from cotswold.host import ForkServer, Processes, Token
from cotswold.host.open_files import require_descriptors
from cotswold.optim.server_rules import AddUpdate, Rule, Sgd
from cotswold.paramserver.core.client_ledger import ANY, ClientLedger
from cotswold.paramserver.core.dispatcher import Dispatcher
from cotswold.paramserver.core.settings import AsyncSettings, DispatcherSettings, QueueLimits
from cotswold.paramserver.core.staleness import Staleness
from cotswold.paramserver.runtime.update_loop import settings_as_dict
from cotswold.processes.coordinator_loop import (
    OnEvent,
)
from cotswold.processes.endpoint_settings import EndpointSettings
from cotswold.replicas.service_coordinator import ServiceCoordinator
from cotswold.replication.run_settings import ReplicatedClusterSettings
from cotswold.shards.core.sample_ledger import SampleCounts
from cotswold.shards.runtime.arithmetic import Array
from cotswold.shards.runtime.chunked_read import ChunkedRead, RequestFunction
from cotswold.shards.runtime.work import TensorSlot
from cotswold.transport import Endpoint
from cotswold.transport.listeners import PortsInUseError
from cotswold.transport.socket_folder import remove_stale_folders
from cotswold.wire.lifecycle import (
    CountersRequest,
    RunTerms,
    ServerCounters,
    WorkerReady,
)
from cotswold.wire.messenger import AnyMessage

PRELOADED = ("torch", "cotswold.paramserver.runtime.server_process")
"""Modules that the fork server imports once."""
_STATE_SECONDS = 0.1
_BEAT_SECONDS = 0.5
_LAST_SECONDS = 5.0
"""Seconds to wait at the end until servers have applied their queued updates."""
_ROOM = 16
"""Updates of all shards that may be queued on a server before clients must retry."""


@dataclass(frozen=True)
class ServiceSettings:
    """Settings of the service; raises UserError for invalid values."""

    host: str
    """Address of this machine for clients."""
    port: int = 0
    """Port of the coordinator; 0 for any free port."""
    servers: int = 1
    rule: Rule = Sgd()  # noqa: RUF009  # it is frozen
    rate: float = 0.1
    """Learning rate; not used for deltas."""
    staleness: Staleness = field(default_factory=Staleness)
    shard_bytes: int = 1 << 20
    ports: tuple[int, int] | None = None
    """Ports of the servers; None for any free ports."""
    encrypt: bool = True
    """Encrypt updates and parameters between hosts."""
    silent_seconds: float = 10.0
    """Seconds after which a silent client is removed."""

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise UserError(f"the learning rate must be more than 0, got {self.rate}")
        if self.staleness.policy == "wait":
            raise UserError("clients come and go, so updates cannot wait for them: use policy scale or drop")

    @property
    def processes(self) -> ReplicatedClusterSettings:
        """Settings of the server processes."""
        return ReplicatedClusterSettings(
            servers=self.servers,
            encrypt=self.encrypt,
            shard_bytes=self.shard_bytes,
            ports=self.ports,
            silent_seconds=self.silent_seconds,
        )


@dataclass(frozen=True)
class ServiceStatus:
    """Status of the service."""

    clients: tuple[str, ...]
    """Names of clients in sessions."""
    account: SampleCounts
    """Sample counts, as reported by clients."""
    servers: tuple[ServerCounters, ...]
    refused: Mapping[str, int]
    """Refusals at the coordinator's endpoint by kind: strangers, malformed messages."""


class _ServiceStartup(Startup):
    def __init__(
        self,
        settings: ServiceSettings,
        logs: Path | None,
        processes: Processes,
        token: Token,
        endpoint: Endpoint,
        on_event: OnEvent,
    ) -> None:
        task = WorkDescription("", {}, logs, settings.host)
        super().__init__(settings.processes, task, processes, token, endpoint, on_event)
        self._service_settings = settings
        self._run = f"run-{secrets.token_hex(8)}"

    def open_serving(
        self, layout: Sequence[TensorSlot], vectors: Mapping[str, Tensor], before: SampleCounts | None
    ) -> ParameterService:
        """Start all processes; ``vectors`` must contain the parameters."""
        chosen = self._service_settings
        point: Array = vectors[POINT].numpy()
        made = WorkerReady(
            m.COORDINATOR,
            str(point.dtype),
            point.size,
            ANY,
            (0, 0),
            0,
            tuple((one.name, one.rows, one.columns) for one in layout),
        )
        self.process_group.spawn(0)  # clients are not our processes
        shards, names = self._start_servers(made)
        rules = DispatcherSettings(
            self._run,
            ANY,
            made.size,
            1,
            chosen.rate,
            assignment_samples=1,
            assignments_ahead=1,
            state_seconds=_STATE_SECONDS,
            beat_seconds=_BEAT_SECONDS,
            silent_seconds=chosen.silent_seconds,
        )
        servers = [(name, self._server_addresses[name]) for name in names]
        ledger = ClientLedger(before)
        machine = Dispatcher(rules, shards, servers, time.monotonic(), ledger)
        kind = "delta" if isinstance(chosen.rule, AddUpdate) else "gradient"
        terms = RunTerms(self._run, made.dtype, kind, made.layout)
        coordinator = ServiceCoordinator(self._messenger, self.process_group, machine, self._on_event, terms)
        kept = {name: vectors.get(name, torch.zeros_like(vectors[POINT])) for name in chosen.rule.state_names}
        for name, value in {**kept, POINT: vectors[POINT]}.items():
            write_vector(coordinator, shards, names, name, value.numpy())
        return ParameterService(coordinator, made, (POINT, *kept), ledger)

    def _server_arguments(self, made: WorkerReady) -> Mapping[str, object]:
        chosen, item_bytes = self._service_settings, np.dtype(made.dtype).itemsize
        room = _ROOM * made.size * item_bytes
        columns = {name: columns for name, _, columns in made.layout}
        settings = AsyncSettings(
            self._run, POINT, chosen.rule, columns, item_bytes, QueueLimits(room, room), chosen.staleness
        )
        return {"updates": settings_as_dict(settings)}


class ParameterService:
    """Running parameter servers; use in a ``with`` statement, or `close`. Use from one thread only."""

    def __init__(
        self,
        coordinator: ServiceCoordinator,
        made: WorkerReady,
        vectors: tuple[str, ...],
        ledger: ClientLedger,
    ) -> None:
        self._coordinator, self._work, self._ledger = coordinator, made, ledger
        self._machine = coordinator.machine
        self.vectors = vectors
        """Names of the vectors: the parameters first, then the state of the update rule."""
        self._counts: dict[str, ServerCounters] = {}
        self._resources = ExitStack()

    def close_with(self, resources: ExitStack) -> None:
        """Close these resources last."""
        self._resources = resources

    @property
    def address(self) -> str:
        """``HOST:PORT`` for clients."""
        return self._coordinator.messenger.endpoint.port_address

    @property
    def shards(self) -> int:
        """Number of shards of the parameters."""
        return len(self._machine.shards)

    @property
    def account(self) -> SampleCounts:
        """Counts of the samples that clients computed from."""
        return self._ledger.total

    @property
    def servers(self) -> Mapping[str, int]:
        """Process numbers of the running parameter servers, by name."""
        process_group = self._coordinator.process_group
        return {
            name: process_group.pid_of(name)
            for name in self._coordinator.servers
            if process_group.is_watched(name)
        }

    def proceed(self, seconds: float) -> None:
        """Serve for ``seconds``; raise ClusterFailedError if a server is lost."""
        deadline = time.monotonic() + seconds
        self._coordinator.wait(lambda: time.monotonic() >= deadline)

    def status(self) -> ServiceStatus:
        """The present status, with the servers' answers to the last `count`."""
        return ServiceStatus(
            tuple(member.name for member in self._machine.members),
            self.account,
            tuple(self._counts[name] for name in self._coordinator.servers if name in self._counts),
            dict(self._coordinator.messenger.endpoint.rejections),
        )

    def count(self) -> None:
        """Request the counts of every server; raise ClusterFailedError if a server is lost."""
        counts: dict[str, ServerCounters] = {}

        def hear(message: AnyMessage) -> None:
            if isinstance(message, ServerCounters):
                counts[message.server] = message

        for server in self._coordinator.servers:
            self._coordinator.messenger.send(server, CountersRequest())
        self._coordinator.handle_until(hear, lambda: len(counts) == len(self._coordinator.servers))
        self._counts = counts

    def read(self) -> dict[str, Tensor]:
        """All vectors by name, as they are on the servers now. During updates two servers may differ by a
        few updates; after `finish` they do not. Raises ClusterFailedError if a server is lost."""
        return {name: self._read(name, partial(m.Pull, 0, 0, name)) for name in self.vectors}

    def checkpoint(self) -> tuple[dict[str, Tensor], SampleCounts]:
        """All vectors and the sample counts, as of a marker that every session has put between two of its
        pushes: each push is in all of the state or in none. Updates continue meanwhile. Raises as `read`."""
        machine = self._machine
        number = machine.begin_checkpoint()
        self._coordinator.wait(lambda: machine.frozen_ledger is not None)
        vectors = {name: self._read(name, partial(m.PullFrozen, number, name)) for name in self.vectors}
        return vectors, machine.take_checkpoint().total

    def _read(self, name: str, request: RequestFunction) -> Tensor:
        pieces = ChunkedRead(self._machine.shards, name, self._work.dtype, self._work.size, request)

        def hear(message: AnyMessage) -> None:
            self._coordinator.deliver(pieces.on_message(message))

        self._coordinator.deliver(pieces.requests())
        self._coordinator.handle_until(hear, lambda: not pieces.owing)
        return torch.from_numpy(pieces.vector)

    def finish(self) -> None:
        """End all sessions; servers then have exactly the updates of `account`. Raises as `read`."""
        self._coordinator.dismiss("they were asked to; all pushes are in their checkpoint")
        deadline = time.monotonic() + _LAST_SECONDS
        self._coordinator.wait(lambda: not self._machine.is_settling or time.monotonic() >= deadline)

    def close(self, why: str = "they were asked to") -> None:
        """End all processes; clients receive the reason ``why``."""
        self._coordinator.dismiss(why)
        self._coordinator.close()
        self._resources.close()
        remove_stale_folders()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, CotswoldError):
            self.close(str(error))
        else:
            self.close()


def open_service(
    settings: ServiceSettings,
    layout: Sequence[TensorSlot],
    vectors: Mapping[str, Tensor],
    *,
    token: Token,
    before: SampleCounts | None = None,
    processes: Processes | None = None,
    logs: Path | None = None,
    on_event: OnEvent = lambda kind, more: None,
) -> ParameterService:
    """Start parameter servers; return when clients may connect.

    Args:
        vectors: Flat ``(size,)`` float32 or float64 arrays by name: the parameters and, to continue a run,
            the state of its update rule.
        before: Sample counts of the run to continue.

    Raises:
        UserError: If processes cannot be started.
        MachineError: If processes cannot be started, or the port is taken.
    """
    require_descriptors(settings.servers + 1)
    with ExitStack() as opened:
        resources = ExitStack()
        opened.push(resources)
        if processes is None:
            own = ForkServer(PRELOADED)
            resources.callback(own.close)
            processes = own
        endpoint_settings = EndpointSettings.of(settings.processes, settings.host)
        try:
            endpoint = Endpoint(
                token,
                m.COORDINATOR,
                host=settings.host,
                ports=(settings.port,) if settings.port else (),
                mode="curve",
                lost_seconds=endpoint_settings.lost_seconds,
            )
        except PortsInUseError as error:
            raise MachineError(
                f"port {settings.port} of {settings.host} is taken: another program listens there, perhaps "
                "other servers; end it, or serve at another port (0: any free port)"
            ) from error
        opened.callback(endpoint.close)
        opening = _ServiceStartup(settings, logs, processes, token, endpoint, on_event)
        opened.callback(opening.process_group.close)
        serving = opening.open_serving(layout, vectors, before)
        serving.close_with(resources)
        opened.pop_all()
        return serving
