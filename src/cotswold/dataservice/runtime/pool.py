"""A pool of data servers: its head, and the server processes that it starts.

Knows: the head's state machine, processes, the endpoint. Does not know: the data, the trainers.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from cotswold import wire as m
from cotswold.dataservice.core.pool import DataServerRecord, PoolState
from cotswold.dataservice.core.shared_epochs import EpochCounts, StreamTotals
from cotswold.dataservice.runtime.server_supervision import ServerSupervision
from cotswold.errors import MachineError, UserError
from cotswold.host import Call, ForkServer, Processes, Token
from cotswold.host.open_files import require_descriptors
from cotswold.host.token import VARIABLE
from cotswold.processes.cluster_settings import ClusterSettings
from cotswold.processes.coordinator_loop import ClusterFailedError, OnEvent
from cotswold.processes.endpoint_settings import EndpointSettings
from cotswold.processes.process_group import ProcessGroup
from cotswold.transport import Endpoint
from cotswold.transport.listeners import PortsInUseError
from cotswold.transport.socket_folder import remove_stale_folders
from cotswold.wire.messenger import AnyMessage, Messenger

PRELOADED = ("torch", "cotswold.dataservice.runtime.server_process")
"""Modules that the fork server imports once."""
KIND = "data-server"
_TICK_SECONDS = 0.1
_RECEIVED = (m.DataServerReport, m.JoinPool, m.EpochReport, m.LeavePool)


@dataclass(frozen=True)
class PoolSettings:
    """Settings of a pool; raises UserError for invalid values."""

    servers: int = 2
    threads: int = 1
    """Threads of a server."""
    host: str | None = None
    """Address of this machine for other hosts; None if all trainers are on this host."""
    port: int = 0
    """Port of the head; 0 for any free port."""
    ports: tuple[int, int] | None = None
    """Ports of the servers; None for any free ports."""
    encrypt: bool = True
    """Encrypt samples between hosts."""
    silent_seconds: float = 10.0
    """Seconds after which a silent server or trainer is lost."""
    beat_seconds: float = 1.0
    start_seconds: float = 120.0
    """Seconds after which a server that has sent no message yet is killed; it may prepare a store first."""
    restarts: bool = True
    """Restart servers that exit."""

    def __post_init__(self) -> None:
        if self.servers < 1 or self.threads < 1:
            raise UserError(
                f"servers and threads must be at least one each, got {self.servers} and {self.threads}"
            )
        if self.ports is not None and self.ports[1] - self.ports[0] + 1 < self.servers:
            raise UserError(
                f"{self.servers} data servers need one port each, got ports {self.ports[0]}-{self.ports[1]}; "
                "give more ports"
            )
        if not 0 < self.beat_seconds < self.silent_seconds:
            raise UserError(
                f"silent_seconds must be longer than beat_seconds, got {self.silent_seconds} s "
                "and {self.beat_seconds} s"
            )
        if not self.start_seconds > 0:
            raise UserError(f"start_seconds must be more than 0, got {self.start_seconds}")

    @property
    def processes(self) -> ClusterSettings:
        """Settings of the server processes."""
        return ClusterSettings(encrypt=self.encrypt, ports=self.ports, silent_seconds=self.silent_seconds)


@dataclass(frozen=True)
class ServerLine:
    """Status of a data server."""

    name: str
    pid: int | None
    """Process number; None for a server on another machine, or one that has just exited."""
    supplied: int
    """Samples sent so far."""
    batches: int
    """Batches sent so far."""
    sent_bytes: int
    """Bytes of these batches."""
    seconds: float
    """Seconds that its threads spent on them."""
    hits: int
    misses: int
    cached_bytes: int
    cached_bytes_most: int
    waiting: int
    """Number of waiting requests."""
    silent_seconds: float
    """Seconds since its last message; it sends one each second."""


@dataclass(frozen=True)
class TrainerLine:
    """Status of a trainer."""

    name: str
    samples: int
    waited_seconds: float
    """Seconds for which its loop waited for samples."""


@dataclass(frozen=True)
class PoolStatus:
    """Status of a pool."""

    servers: tuple[ServerLine, ...]
    trainers: tuple[TrainerLine, ...]
    ended: Mapping[str, str]
    """Servers that exited, and the reasons."""
    replaced: int
    """Number of restarts of servers."""
    refused: Mapping[str, int]
    """Refusals at the head's endpoint by kind: strangers, malformed messages."""
    drawn: tuple[EpochCounts, ...] = ()
    """Counts of each shared epoch."""
    streams: tuple[StreamTotals, ...] = ()
    """Totals of each stream."""


class PoolCoordinator(ServerSupervision):
    """The event loop of the head."""

    tick_seconds = _TICK_SECONDS

    def __init__(
        self,
        messenger: Messenger,
        process_group: ProcessGroup,
        machine: PoolState,
        start_seconds: float,
        on_event: OnEvent,
    ) -> None:
        super().__init__(messenger, process_group, start_seconds, machine.silent_seconds, on_event)
        self.machine = machine
        self.lock = threading.RLock()
        """Held during changes, so that other threads can read the status."""
        self._end_reason = ""
        """The reason why it cannot continue."""

    @property
    def exits(self) -> Mapping[str, str]:
        """Exit reasons of servers."""
        return dict(self._exit_reasons)

    def dismiss(self) -> None:
        """Notify servers and trainers of the end, and end the processes."""
        for name in self.machine.trainers:
            self.messenger.send(name, m.Shutdown(0, self._end_reason))
        self._end((), tuple(self.machine.servers))

    def _on_message(self, sender: str, message: AnyMessage) -> None:
        with self.lock:
            self._pass_to_pool(sender, message)

    def _pass_to_pool(self, sender: str, message: AnyMessage) -> None:
        if isinstance(message, _RECEIVED):
            now = time.monotonic()
            self.deliver(self.machine.receive(sender, message, now))
            if sender in self.machine.servers and self.process_group.is_watched(sender):
                self._serves(sender, now)

    def _on_process_exit(self, name: str, why: str, now: float) -> Sequence[m.Send]:
        return self.machine.on_lost(name, now)

    def _on_client_disconnect(self, name: str, why: str) -> None:
        with self.lock:
            self.deliver(self.machine.on_lost(name, time.monotonic()))

    def _on_descriptor_ready(self, descriptor: int) -> None:
        with self.lock:
            super()._on_descriptor_ready(descriptor)

    def _tick(self, now: float) -> None:
        with self.lock:
            self._supervise(now)

    def _supervise(self, now: float) -> None:
        self.machine.exclude_stall(self._check_servers(now))
        self.deliver(self.machine.tick(now))
        self.process_group.tick(now)
        if self.process_group.cannot_recover and self._hired and not self.machine.servers:
            last = (
                f"; the last of them: {self.process_group.last_exit_reason}"
                if self.process_group.last_exit_reason
                else ""
            )
            self._end_reason = f"every data server has exited{last}"
            raise ClusterFailedError(self._end_reason)

    _hired = 0

    def hire(self, count: int) -> None:
        """Start ``count`` servers."""
        self.process_group.spawn(count)
        self._hired = count


class DataPool:
    """A running pool; use in a ``with`` statement, or `close`. Only one thread may use it, except for
    `status`."""

    def __init__(self, coordinator: PoolCoordinator, resources: ExitStack) -> None:
        self._coordinator, self._resources = coordinator, resources

    @property
    def address(self) -> str:
        """Address for trainers and servers; not a secret."""
        return self._coordinator.messenger.endpoint.address

    @property
    def port_address(self) -> str:
        """``HOST:PORT`` for trainers of other hosts."""
        return self._coordinator.messenger.endpoint.port_address

    @property
    def machine(self) -> PoolState:
        """The head's state machine."""
        return self._coordinator.machine

    def connect(self, name: str, address: str) -> None:
        """Call a trainer, which may then join."""
        self._coordinator.messenger.endpoint.connect(name, address)

    def proceed(self, seconds: float) -> None:
        """Serve for ``seconds``; raise ClusterFailedError if every server has exited, and
        no more are started."""
        deadline = time.monotonic() + seconds
        self._coordinator.wait(lambda: time.monotonic() >= deadline)

    def wait(self, until: Callable[[], bool]) -> None:
        """Serve until a condition holds; raises as `proceed`."""
        self._coordinator.wait(until)

    def status(self) -> PoolStatus:
        """The present status; any thread may call it."""
        process_group, machine = self._coordinator.process_group, self.machine
        with self._coordinator.lock:
            return PoolStatus(
                server_lines(machine.servers, process_group),
                tuple(_trainer(machine.trainers[name].join) for name in sorted(machine.trainers)),
                self._coordinator.exits,
                process_group.replaced,
                dict(self._coordinator.messenger.endpoint.rejections),
                machine.shared_epochs.accounts,
                machine.shared_epochs.totals,
            )

    def close(self) -> None:
        """End all processes."""
        self._coordinator.dismiss()
        self._resources.close()
        remove_stale_folders()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_pool(
    settings: PoolSettings,
    work: str,
    arguments: Mapping[str, object],
    *,
    token: Token,
    processes: Processes | None = None,
    logs: Path | None = None,
    on_event: OnEvent = lambda kind, more: None,
) -> DataPool:
    """Start the head of a pool in this process, and its servers; return at once.

    In each server ``work`` (``"module:function"``) is called with ``arguments``, and returns a
    `dataservice.runtime.server_process.DataWork`. Raises UserError or MachineError if processes cannot be
    started, or the port is taken.
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
                m.POOL,
                host=settings.host,
                ports=(settings.port,) if settings.port else (),
                mode=None if settings.host is None else "curve",
                lost_seconds=endpoint_settings.lost_seconds,
            )
        except PortsInUseError as error:
            raise MachineError(
                f"port {settings.port} of {settings.host} is taken, perhaps by another pool; end "
                "it, or serve at another port (0: any free port)"
            ) from error
        opened.callback(endpoint.close)

        def call_of(name: str) -> Call:
            told = {
                "name": name,
                "pool": endpoint.address,
                "work": work,
                "arguments": dict(arguments),
                "endpoint_settings": endpoint_settings.as_dict(),
                "threads": settings.threads,
                "beat_seconds": settings.beat_seconds,
            }
            output = None if logs is None else logs / f"{name}.log"
            return Call(
                name, "cotswold.dataservice.runtime.server_process:main", told, {VARIABLE: token.text}, output
            )

        process_group = ProcessGroup(processes, endpoint, call_of, restarts=settings.restarts, kind=KIND)
        opened.callback(process_group.close)
        machine = PoolState(f"pool-{secrets.token_hex(8)}", settings.silent_seconds)
        coordinator = PoolCoordinator(
            Messenger(endpoint), process_group, machine, settings.start_seconds, on_event
        )
        coordinator.hire(settings.servers)
        opened.pop_all()
        return DataPool(coordinator, resources)


def server_lines(
    servers: Mapping[str, DataServerRecord], process_group: ProcessGroup
) -> tuple[ServerLine, ...]:
    """Status of servers from their last messages."""
    now = time.monotonic()
    return tuple(
        server_line(each.offer, now - each.last_report, process_group) for _, each in sorted(servers.items())
    )


def server_line(offer: m.DataServerReport, silent_seconds: float, process_group: ProcessGroup) -> ServerLine:
    """Status of a server."""
    return ServerLine(
        offer.name,
        process_group.pid_of(offer.name) if process_group.is_watched(offer.name) else None,
        offer.samples_sent,
        offer.batches,
        offer.sent_bytes,
        offer.seconds,
        offer.hits,
        offer.misses,
        offer.cached_bytes,
        offer.cached_bytes_max,
        offer.queued_requests,
        max(0.0, silent_seconds),
    )


def _trainer(said: m.JoinPool) -> TrainerLine:
    return TrainerLine(said.name, said.delivered, said.waited_seconds)


def settings_as_dict(settings: PoolSettings) -> dict[str, object]:
    """Settings as plain values, from which `settings_from_dict` restores them."""
    return dict(vars(settings))


def settings_from_dict(said: Mapping[str, object]) -> PoolSettings:
    """Restore settings from `settings_as_dict`."""
    known = dict(said)
    ports = known.get("ports")
    if isinstance(ports, list):
        known["ports"] = tuple(ports)
    return replace(PoolSettings(), **known)  # type: ignore[arg-type]  # as JSON says it
