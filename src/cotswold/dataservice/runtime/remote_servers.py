"""Data servers on this machine for a pool whose head is elsewhere.

Knows: processes, the endpoint, the head's answers. Does not know: the data, the trainers.

The lender starts and supervises data servers, as a pool does. They send their status to the head and to the
lender, and exit when either exits.
"""

from __future__ import annotations

import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from cotswold import wire as m
from cotswold.dataservice.core.pool import DataServerRecord
from cotswold.dataservice.runtime.pool import KIND, PRELOADED, PoolSettings, PoolStatus, server_lines
from cotswold.dataservice.runtime.server_supervision import ServerSupervision
from cotswold.errors import MachineError, UserError
from cotswold.host import Call, ForkServer, Processes, Token
from cotswold.host.token import VARIABLE
from cotswold.processes.coordinator_loop import ClusterFailedError, OnEvent
from cotswold.processes.endpoint_settings import EndpointSettings, local_address
from cotswold.processes.process_group import ProcessGroup
from cotswold.transport import Endpoint, Lost
from cotswold.transport.address import Address
from cotswold.transport.host_names import address_of
from cotswold.transport.socket_folder import remove_stale_folders
from cotswold.wire.lifecycle import StopProcess
from cotswold.wire.messenger import AnyMessage, Messenger, Received

_START_SECONDS = 60.0
"""Seconds to wait for the pool's terms: its first server may prepare a store first."""
_ATTEND_SECONDS = 1.0
_END_SECONDS = 2.0
"""Seconds between the end of the connection to the head and a server's message that the head has ended it."""
_LEAVE_SECONDS = 5.0
"""Seconds to wait until servers have left."""


class LenderCoordinator(ServerSupervision):
    """The event loop of the lender."""

    def __init__(
        self,
        messenger: Messenger,
        process_group: ProcessGroup,
        where: str,
        settings: PoolSettings,
        on_event: OnEvent,
    ) -> None:
        super().__init__(messenger, process_group, settings.start_seconds, settings.silent_seconds, on_event)
        self.where = where
        self.offers: dict[str, DataServerRecord] = {}
        self.is_finished = False
        """True if the pool has ended normally."""
        self._is_leaving = False
        self._head_lost: tuple[float, str] | None = None

    @property
    def exits(self) -> Mapping[str, str]:
        """Exit reasons of servers."""
        return dict(self._exit_reasons)

    def return_servers(self) -> None:
        """Have all servers leave the pool, and exit."""
        self._is_leaving = True
        self.process_group.stop_restarts()
        there = set(self.offers)
        for name in there:
            self.messenger.send(name, StopProcess())
        deadline = time.monotonic() + _LEAVE_SECONDS
        while any(map(self.process_group.is_watched, there)) and time.monotonic() < deadline:
            self._receive_event(self.tick_seconds)
        self._end((), ())

    def _on_message(self, sender: str, message: AnyMessage) -> None:
        match message:
            case m.DataServerReport() if message.name == sender and self.process_group.is_watched(sender):
                now = time.monotonic()
                self._serves(sender, now)
                self.offers[sender] = DataServerRecord(message, now)
            case m.LeavePool() if sender in self.offers:
                self.is_finished = True
            case _:
                pass

    def _on_process_exit(self, name: str, why: str, now: float) -> Sequence[m.Send]:
        self.offers.pop(name, None)
        return ()

    def _on_client_disconnect(self, name: str, why: str) -> None:
        if name == m.POOL:
            self._head_lost = (time.monotonic(), why)

    def _report_exit(self, name: str, why: str, code: int | None = None) -> None:
        if not self.is_finished and not self._is_leaving:
            super()._report_exit(name, why, code)

    def _tick(self, now: float) -> None:
        if self._head_lost is not None and now - self._head_lost[0] > _END_SECONDS and not self.is_finished:
            raise ClusterFailedError(
                f"the head of {self.where} is lost ({self._head_lost[1]}); start again when it runs"
            )
        if self.is_finished or self._head_lost is not None:
            return
        self._check_servers(now)
        self.process_group.tick(now)
        if self.process_group.cannot_recover:
            last = (
                f"; the last of them: {self.process_group.last_exit_reason}"
                if self.process_group.last_exit_reason
                else ""
            )
            raise ClusterFailedError(f"every data server of this machine has exited{last}")


class RemoteServers:
    """Data servers for a remote pool; use in a ``with`` statement, or `close`. Use from one thread only."""

    def __init__(self, coordinator: LenderCoordinator, resources: ExitStack) -> None:
        self._coordinator, self._resources = coordinator, resources

    @property
    def is_finished(self) -> bool:
        """True if the pool has ended, and the servers have exited."""
        return self._coordinator.is_finished

    def proceed(self, seconds: float) -> None:
        """Serve for at most ``seconds``; raise ClusterFailedError if the head is lost, or every server has
        exited and no more are started."""
        deadline = time.monotonic() + seconds
        self._coordinator.wait(lambda: self.is_finished or time.monotonic() >= deadline)

    def status(self) -> PoolStatus:
        """Status of this machine's servers; only the head knows the trainers."""
        spoken, process_group = self._coordinator, self._coordinator.process_group
        refused = dict(spoken.messenger.endpoint.rejections)
        return PoolStatus(
            server_lines(spoken.offers, process_group),
            (),
            spoken.exits,
            process_group.replaced,
            refused,
        )

    def close(self) -> None:
        """Leave the pool, and end all processes."""
        self._coordinator.return_servers()
        self._resources.close()
        remove_stale_folders()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_remote_servers(
    head: tuple[str, int],
    settings: PoolSettings,
    store: str,
    work: str,
    arguments_of: Callable[[str], Mapping[str, object]],
    *,
    token: Token,
    processes: Processes | None = None,
    on_event: OnEvent = lambda kind, more: None,
) -> RemoteServers:
    """Start data servers for the pool whose head listens at ``head``.

    This machine's address is the one from which it reaches the head; ``settings.host`` and ``port`` are not
    used.

    Args:
        head: Host and port.
        store: Identity of the store to serve.
        arguments_of: Returns the arguments of ``work`` for the pool's terms (`PoolMembers.terms`). Raises
            UserError if the terms differ from this machine's data.

    Raises:
        UserError: For another token or store.
        MachineError: If the head does not answer, or processes cannot be started.
    """
    host = address_of(*head)
    where = f"the pool of data servers at {head[0]}:{head[1]}"
    at_port = str(Address.of_port(host, head[1]))
    name = f"lender-{re.sub('[^A-Za-z0-9-]', '-', socket.gethostname())[:30]}-{secrets.token_hex(3)}"
    with ExitStack() as opened:
        resources = ExitStack()
        opened.push(resources)
        if processes is None:
            own = ForkServer(PRELOADED)
            resources.callback(own.close)
            processes = own
        endpoint = Endpoint(token, name, host=local_address(host), encrypt=settings.encrypt)
        opened.callback(endpoint.close)
        messenger = Messenger(endpoint)
        endpoint.connect(m.POOL, at_port)
        arguments = arguments_of(_terms(messenger, name, store, where))
        endpoint_settings = EndpointSettings.of(settings.processes, host)

        def call_of(server: str) -> Call:
            told = {
                "name": server,
                "pool": at_port,
                "work": work,
                "arguments": dict(arguments),
                "endpoint_settings": endpoint_settings.as_dict(),
                "threads": settings.threads,
                "beat_seconds": settings.beat_seconds,
                "lender": (name, endpoint.address),
            }
            return Call(
                server, "cotswold.dataservice.runtime.server_process:main", told, {VARIABLE: token.text}
            )

        process_group = ProcessGroup(
            processes,
            endpoint,
            call_of,
            restarts=settings.restarts,
            kind=f"{KIND}-{name.removeprefix('lender-')}",
        )
        opened.callback(process_group.close)
        coordinator = LenderCoordinator(messenger, process_group, where, settings, on_event)
        process_group.spawn(settings.servers)
        opened.pop_all()
        return RemoteServers(coordinator, resources)


def _terms(messenger: Messenger, name: str, store: str, where: str) -> str:
    """The pool's terms."""
    attend = m.JoinPool(name, messenger.endpoint.address, store, 0)
    deadline, asked = time.monotonic() + _START_SECONDS, float("-inf")
    while (now := time.monotonic()) < deadline:
        if now - asked >= _ATTEND_SECONDS:
            asked = now
            messenger.send(m.POOL, attend)
        match messenger.receive(_ATTEND_SECONDS):
            case Received(sender, m.PoolMembers() as roster) if sender == m.POOL and roster.why:
                raise UserError(
                    f"{roster.why}; prepare the same samples here by the same recipe, or copy the store"
                )
            case Received(sender, m.PoolMembers() as roster) if sender == m.POOL and roster.terms:
                messenger.send(m.POOL, m.LeavePool(name))
                return roster.terms
            case Lost(peer) as lost if peer == m.POOL and lost.by_token:
                raise UserError(f"{where} has another token; use its token: --token-file, or {VARIABLE}")
            case Lost(peer, why) if peer == m.POOL:
                raise MachineError(f"{where} cannot be joined: {why}")
            case _:
                pass
    raise MachineError(f"{where} has sent no terms; check that its servers are running")
