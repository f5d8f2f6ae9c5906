"""A pool of data servers: its head, with the processes that it starts.

Knows: the head's state machine, processes, the endpoint. Does not know: what is served, who trains.
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
from cotswold.dataservice.core.pool import Pool, Supplier
from cotswold.dataservice.core.shared_epochs import Drawn, StreamTotals
from cotswold.dataservice.runtime.server_supervision import DataListening
from cotswold.errors import MachineError, UserError
from cotswold.host import Call, ForkServer, Processes, Token
from cotswold.host.open_files import require_descriptors
from cotswold.host.token import VARIABLE
from cotswold.processes.cluster_settings import ClusterSettings
from cotswold.processes.coordinator_loop import OnEvent, TroubleError
from cotswold.processes.endpoint_settings import Reach
from cotswold.processes.process_group import Staff
from cotswold.transport import Endpoint
from cotswold.transport.listeners import PortsTakenError
from cotswold.transport.socket_folder import remove_left_folders
from cotswold.wire.messenger import AnyMessage, Post

PRELOADED = ("torch", "cotswold.dataservice.runtime.server_process")
"""What whoever starts data servers imports once."""
KIND = "data-server"
_TICK_SECONDS = 0.1
_HEARD = (m.Offer, m.Attend, m.Draw, m.Depart)


@dataclass(frozen=True)
class PoolSettings:
    """What a pool is; raises UserError for what cannot be."""

    servers: int = 2
    threads: int = 1
    """Of a server."""
    host: str | None = None
    """The address of this machine at which others reach it; None where all trainers are on this host."""
    port: int = 0
    """Of the head; 0 for any that is free."""
    ports: tuple[int, int] | None = None
    """Of the servers; None for any that are free."""
    encrypt: bool = True
    """Whether samples are secret between hosts."""
    silent_seconds: float = 10.0
    """After which a server or a trainer that says nothing is gone."""
    beat_seconds: float = 1.0
    start_seconds: float = 120.0
    """After which a server that has said nothing yet is killed: it may read a store first."""
    restarts: bool = True
    """Whether a server that died is started again."""

    def __post_init__(self) -> None:
        if self.servers < 1 or self.threads < 1:
            raise UserError(
                f"servers = {self.servers} and threads = {self.threads}; take at least one of each"
            )
        if self.ports is not None and self.ports[1] - self.ports[0] + 1 < self.servers:
            raise UserError(
                f"{self.servers} data servers at the ports {self.ports[0]}-{self.ports[1]}; each takes one: "
                "give more ports"
            )
        if not 0 < self.beat_seconds < self.silent_seconds:
            raise UserError(
                f"a beat every {self.beat_seconds} s and silence of {self.silent_seconds} s; the silence is "
                "longer than a beat"
            )
        if not self.start_seconds > 0:
            raise UserError(f"{self.start_seconds} s for the start of a data server; give more than 0")

    @property
    def processes(self) -> ClusterSettings:
        """Those of the servers."""
        return ClusterSettings(encrypt=self.encrypt, ports=self.ports, silent_seconds=self.silent_seconds)


@dataclass(frozen=True)
class ServerLine:
    """What a data server does."""

    name: str
    pid: int | None
    """None for one that another machine lends, and one whose process has just ended."""
    supplied: int
    """Samples so far."""
    batches: int
    """In which they were sent."""
    sent_bytes: int
    """Of these batches."""
    seconds: float
    """In which its threads made them."""
    hits: int
    misses: int
    cached_bytes: int
    cached_bytes_most: int
    waiting: int
    """Requests that wait."""
    silent_seconds: float
    """Since it was heard last; it says something each second."""


@dataclass(frozen=True)
class TrainerLine:
    """What a trainer has had."""

    name: str
    samples: int
    waited_seconds: float
    """For which its loop waited for them."""


@dataclass(frozen=True)
class PoolStatus:
    """Where things are, for whoever watches."""

    servers: tuple[ServerLine, ...]
    trainers: tuple[TrainerLine, ...]
    ended: Mapping[str, str]
    """Servers that ended, and why."""
    replaced: int
    """Servers that were started in the place of those."""
    refused: Mapping[str, int]
    """By the head's endpoint: strangers, and what was no message."""
    drawn: tuple[Drawn, ...] = ()
    """Of each epoch that trainers draw together."""
    streams: tuple[StreamTotals, ...] = ()
    """Of all epochs of each stream."""


class _Conversation(DataListening):
    """Whatever the head hears."""

    tick_seconds = _TICK_SECONDS

    def __init__(
        self, post: Post, staff: Staff, machine: Pool, start_seconds: float, on_event: OnEvent
    ) -> None:
        super().__init__(post, staff, start_seconds, machine.silent_seconds, on_event)
        self.machine = machine
        self.lock = threading.RLock()
        """Held while anything changes, so that others may look on."""
        self._why = ""
        """Why it cannot go on."""

    @property
    def ends(self) -> Mapping[str, str]:
        """Why servers ended."""
        return dict(self._ends)

    def dismiss(self) -> None:
        """Tell servers and trainers that it is over, and end the processes."""
        for name in self.machine.trainers:
            self.post.send(name, m.Dismiss(0, self._why))
        self._end((), tuple(self.machine.servers))

    def _let_hear(self, sender: str, message: AnyMessage) -> None:
        with self.lock:
            self._let_pool_hear(sender, message)

    def _let_pool_hear(self, sender: str, message: AnyMessage) -> None:
        if isinstance(message, _HEARD):
            now = time.monotonic()
            self.deliver(self.machine.receive(sender, message, now))
            if sender in self.machine.servers and self.staff.is_watched(sender):
                self._serves(sender, now)

    def _let_know(self, name: str, why: str, now: float) -> Sequence[m.Send]:
        return self.machine.gone(name, now)

    def _visitor_lost(self, name: str, why: str) -> None:
        with self.lock:
            self.deliver(self.machine.gone(name, time.monotonic()))

    def _ended(self, descriptor: int) -> None:
        with self.lock:
            super()._ended(descriptor)

    def _tick(self, now: float) -> None:
        with self.lock:
            self._look_after_all(now)

    def _look_after_all(self, now: float) -> None:
        self.machine.forgive(self._look_after_servers(now))
        self.deliver(self.machine.tick(now))
        self.staff.tick(now)
        if self.staff.is_hopeless and self._hired and not self.machine.servers:
            last = f"; the last of them: {self.staff.last_words}" if self.staff.last_words else ""
            self._why = f"every data server is dead{last}"
            raise TroubleError(self._why)

    _hired = 0

    def hire(self, count: int) -> None:
        """Start so many servers."""
        self.staff.hire(count)
        self._hired = count


class DataPool:
    """A pool that serves; use in a ``with`` statement, or `close`. One thread uses it, but for `status`."""

    def __init__(self, conversation: _Conversation, resources: ExitStack) -> None:
        self._conversation, self._resources = conversation, resources

    @property
    def address(self) -> str:
        """By which trainers and servers connect; no secret."""
        return self._conversation.post.endpoint.address

    @property
    def port_address(self) -> str:
        """``HOST:PORT``, where trainers of other hosts connect."""
        return self._conversation.post.endpoint.port_address

    @property
    def machine(self) -> Pool:
        """What the head knows."""
        return self._conversation.machine

    def connect(self, name: str, address: str) -> None:
        """Call a trainer, which may then attend."""
        self._conversation.post.endpoint.connect(name, address)

    def proceed(self, seconds: float) -> None:
        """Serve for so long; raises TroubleError where every server is dead, and no more are started."""
        deadline = time.monotonic() + seconds
        self._conversation.wait(lambda: time.monotonic() >= deadline)

    def wait(self, until: Callable[[], bool]) -> None:
        """Serve until something holds; raises as `proceed`."""
        self._conversation.wait(until)

    def status(self) -> PoolStatus:
        """Where things are; another thread may ask while this one serves."""
        staff, machine = self._conversation.staff, self.machine
        with self._conversation.lock:
            return PoolStatus(
                lines_of(machine.servers, staff),
                tuple(_trainer(machine.trainers[name].said) for name in sorted(machine.trainers)),
                self._conversation.ends,
                staff.replaced,
                dict(self._conversation.post.endpoint.refused),
                machine.sharing.accounts,
                machine.sharing.totals,
            )

    def close(self) -> None:
        """End all."""
        self._conversation.dismiss()
        self._resources.close()
        remove_left_folders()

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
    """Start the head of a pool in this process, and its servers; returns at once.

    ``work`` (``"module:function"``) makes in each server, of ``arguments``, what makes batches
    (`roles.data_server.DataWork`). Raises UserError and MachineError where processes cannot be started, or
    nobody can listen there.
    """
    require_descriptors(settings.servers + 1)
    with ExitStack() as opened:
        resources = ExitStack()
        opened.push(resources)
        if processes is None:
            own = ForkServer(PRELOADED)
            resources.callback(own.close)
            processes = own
        reach = Reach.of(settings.processes, settings.host)
        try:
            endpoint = Endpoint(
                token,
                m.POOL,
                host=settings.host,
                ports=(settings.port,) if settings.port else (),
                mode=None if settings.host is None else "curve",
                lost_seconds=reach.lost_seconds,
            )
        except PortsTakenError as error:
            raise MachineError(
                f"port {settings.port} of {settings.host} is taken: another pool serves there, perhaps; end "
                "it, or serve at another port (0: any that is free)"
            ) from error
        opened.callback(endpoint.close)

        def call_of(name: str) -> Call:
            told = {
                "name": name,
                "pool": endpoint.address,
                "work": work,
                "arguments": dict(arguments),
                "reach": reach.said(),
                "threads": settings.threads,
                "beat_seconds": settings.beat_seconds,
            }
            output = None if logs is None else logs / f"{name}.log"
            return Call(
                name, "cotswold.dataservice.runtime.server_process:main", told, {VARIABLE: token.text}, output
            )

        staff = Staff(processes, endpoint, call_of, restarts=settings.restarts, kind=KIND)
        opened.callback(staff.close)
        machine = Pool(f"pool-{secrets.token_hex(8)}", settings.silent_seconds)
        conversation = _Conversation(Post(endpoint), staff, machine, settings.start_seconds, on_event)
        conversation.hire(settings.servers)
        opened.pop_all()
        return DataPool(conversation, resources)


def lines_of(servers: Mapping[str, Supplier], staff: Staff) -> tuple[ServerLine, ...]:
    """What servers do, as they have said it last."""
    now = time.monotonic()
    return tuple(line_of(each.offer, now - each.heard, staff) for _, each in sorted(servers.items()))


def line_of(offer: m.Offer, silent_seconds: float, staff: Staff) -> ServerLine:
    """What a server does."""
    return ServerLine(
        offer.name,
        staff.pid_of(offer.name) if staff.is_watched(offer.name) else None,
        offer.supplied,
        offer.batches,
        offer.sent_bytes,
        offer.seconds,
        offer.hits,
        offer.misses,
        offer.cached_bytes,
        offer.cached_bytes_most,
        offer.waiting,
        max(0.0, silent_seconds),
    )


def _trainer(said: m.Attend) -> TrainerLine:
    return TrainerLine(said.name, said.handed, said.waited)


def described(settings: PoolSettings) -> dict[str, object]:
    """Settings as plain values, of which `settings_of` makes them again."""
    return dict(vars(settings))


def settings_of(said: Mapping[str, object]) -> PoolSettings:
    """The settings that `described` gave."""
    known = dict(said)
    ports = known.get("ports")
    if isinstance(ports, list):
        known["ports"] = tuple(ports)
    return replace(PoolSettings(), **known)  # type: ignore[arg-type]  # as JSON says it
