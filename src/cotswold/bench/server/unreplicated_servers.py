"""Processes of parameter servers for measurements of transports.

Knows: how to start a server and give it a vector, sessions and rates; transports. Does not know: what is
measured.

The server is that of `cotswold train` (`paramserver.runtime.server_process`), forked as there. This process
is its coordinator. Clients have separate endpoints (`client`), here or in another process.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import cache
from typing import Literal

import numpy as np

from cotswold import wire as m
from cotswold.errors import MachineError
from cotswold.host import Call, ForkServer, Process, Token
from cotswold.host.token import VARIABLE
from cotswold.optim.server_rules import Rule, Sgd
from cotswold.paramserver.core.settings import AsyncSettings, QueueLimits
from cotswold.paramserver.core.staleness import Staleness
from cotswold.paramserver.runtime.update_loop import settings_as_dict
from cotswold.processes.endpoint_settings import EndpointSettings
from cotswold.shards.runtime.arithmetic import raw
from cotswold.shards.runtime.layout import split_into_shards
from cotswold.shards.runtime.work import TensorSlot
from cotswold.transport import Endpoint, Lost
from cotswold.wire.lifecycle import CountersRequest, ServerCounters, ServerReady, StopProcess
from cotswold.wire.messenger import AnyMessage, Messenger, PeerMoved, Received

Transport = Literal["Unix socket", "TCP", "TCP, CURVE", "shared memory"]
TRANSPORTS: tuple[Transport, ...] = ("Unix socket", "TCP", "TCP, CURVE", "shared memory")
_PRELOADED = (
    "torch",
    "cotswold.paramserver.runtime.server_process",
    "cotswold.replication.runtime.server_process",
    "cotswold.replication.runtime.controller_process",
    "cotswold.bench.server.processes",
    "cotswold.bench.server.raw",
    "cotswold.bench.server.replay",
)
LOOPBACK = "127.0.0.1"
WEIGHTS = "x"
RUN = "bench"
_MEMORY = "COTSWOLD_SHARED_MEMORY"
_SECONDS = 60.0
_RATE = 1e-6


@cache
def forked() -> ForkServer:
    """The fork server of all measurements; it ends with this process."""
    processes = ForkServer(_PRELOADED)
    atexit.register(processes.close)
    return processes


def reach_of(transport: Transport) -> EndpointSettings:
    """Endpoint settings of a transport: on one host, or as if each process had a separate host."""
    if transport.startswith("TCP"):
        return EndpointSettings(LOOPBACK, encrypt="CURVE" in transport, apart=True)
    return EndpointSettings()


def environ_of(transport: Transport, token: Token) -> dict[str, str]:
    """Environment variables of processes on a transport."""
    return {VARIABLE: token.text, _MEMORY: "1" if transport == "shared memory" else "0"}


@contextmanager
def endpoints_on(transport: Transport, token: Token) -> Iterator[None]:
    """Create endpoints on this transport within the block."""
    told = environ_of(transport, token)
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def endpoint_on(transport: Transport, token: Token, name: str) -> Endpoint:
    """An endpoint of this process on a transport."""
    reach = reach_of(transport)
    with endpoints_on(transport, token):
        return Endpoint(token, name, host=reach.towards, encrypt=reach.encrypt, apart=reach.apart)


@dataclass(frozen=True)
class Model:
    """The contents of servers: tensors in shards of about ``shard_bytes``, their type and update rule."""

    layout: tuple[tuple[str, int, int], ...]
    """Name, rows and numbers per row of each tensor."""
    shard_bytes: int
    rule: Rule = Sgd()  # noqa: RUF009  # it is frozen
    dtype: str = "float32"
    staleness: Staleness = Staleness()  # noqa: RUF009  # it is frozen
    queue_bytes: int = 1 << 28
    """Bytes of updates that a server may queue."""
    cut: tuple[m.Shard, ...] = ()
    """The shards, if they are given instead of computed."""

    @property
    def size(self) -> int:
        """Numbers up to the end of the last shard."""
        if self.cut:
            return max(one.stop for one in self.cut)
        return sum(rows * columns for _, rows, columns in self.layout)

    def shards(self, servers: Sequence[str]) -> tuple[m.Shard, ...]:
        """The shards, with their servers."""
        if self.cut:
            return self.cut
        item_bytes = np.dtype(self.dtype).itemsize
        return split_into_shards(
            [TensorSlot(*one) for one in self.layout], item_bytes, self.shard_bytes, servers
        )

    @property
    def as_dict(self) -> dict[str, object]:
        """Settings of servers, as plain values."""
        room = QueueLimits(self.queue_bytes, self.queue_bytes)
        columns = {name: columns for name, _, columns in self.layout}
        item_bytes = np.dtype(self.dtype).itemsize
        return settings_as_dict(
            AsyncSettings(RUN, WEIGHTS, self.rule, columns, item_bytes, room, self.staleness)
        )


class UnreplicatedServers:
    """Servers of a model that accept pushes of ``sessions`` (their names); use in a ``with`` statement."""

    def __init__(
        self,
        processes: ForkServer,
        model: Model,
        sessions: Sequence[str],
        transport: Transport,
        servers: int = 1,
    ) -> None:
        self.model, self.transport, self.token = model, transport, Token.new()
        self.shards = model.shards([f"server-{number}" for number in range(servers)])
        self.names = tuple(dict.fromkeys(one.server for one in self.shards))
        self.addresses: dict[str, str] = {}
        self._post = Messenger(endpoint_on(transport, self.token, m.COORDINATOR))
        self._processes: list[Process] = []
        try:
            for name in self.names:
                self._processes.append(processes.start(self._call(name)))
            receive_until(self._post, self._serving, lambda: len(self.addresses) == len(self.names))
            write_zeros(self._post, model, self.shards)
            order(self._post, self.names, sessions)
        except BaseException:
            self.close()
            raise

    def pids(self) -> list[int]:
        """Process numbers of the servers."""
        return [one.pid for one in self._processes]

    def counts(self) -> list[ServerCounters]:
        """Counters of the servers so far."""
        return counts_of(self._post, self.names)

    def close(self) -> None:
        """End the servers."""
        for name in self.addresses:
            self._post.send(name, StopProcess())
        self._post.endpoint.close()
        for one in self._processes:
            one.end()

    def __enter__(self) -> UnreplicatedServers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _call(self, name: str) -> Call:
        arguments = {
            "name": name,
            "coordinator": self._post.endpoint.address,
            "shards": [astuple(one) for one in self.shards if one.server == name],
            "dtype": self.model.dtype,
            "endpoint_settings": reach_of(self.transport).as_dict(),
            "updates": self.model.as_dict,
        }
        return Call(
            name,
            "cotswold.paramserver.runtime.server_process:main",
            arguments,
            environ_of(self.transport, self.token),
        )

    def _serving(self, message: AnyMessage) -> None:
        if isinstance(message, ServerReady):
            self.addresses[message.name] = message.address


def counts_of(post: Messenger, servers: Sequence[str]) -> list[ServerCounters]:
    """Counters of servers so far."""
    found: dict[str, ServerCounters] = {}

    def hear(message: AnyMessage) -> None:
        if isinstance(message, ServerCounters):
            found[message.server] = message

    for name in servers:
        post.send(name, CountersRequest())
    receive_until(post, hear, lambda: len(found) == len(servers))
    return [found[name] for name in servers]


def write_zeros(post: Messenger, model: Model, shards: Sequence[m.Shard]) -> None:
    """Set all vectors of a model to zero on its servers."""
    vector = np.zeros(model.size, model.dtype)
    own: dict[str, list[m.Shard]] = {}
    for one in shards:
        own.setdefault(one.server, []).append(one)
    for name in (*model.rule.state_names, WEIGHTS):
        writes = {
            server: m.Write(
                *(1, name, tuple(one.number for one in some)),
                tuple(raw(vector[one.start : one.stop]) for one in some),
            )
            for server, some in own.items()
        }
        request_all(post, writes, m.WriteAck)


def order(post: Messenger, servers: Sequence[str], names: Sequence[str]) -> None:
    """Open sessions of these names, numbered from 1, on servers or buckets."""
    sessions = tuple((number, name) for number, name in enumerate(names, 1))
    request_all(
        post,
        dict.fromkeys(servers, m.CoordinatorState(1, sessions, ((0, _RATE),), 0, 0)),
        m.CoordinatorStateAck,
    )


def request_all(
    post: Messenger, questions: Mapping[str, m.Message], kind: type[m.WriteAck] | type[m.CoordinatorStateAck]
) -> None:
    """Send each server a request, and wait until all have answered; resend to the others after a while."""
    unanswered = dict(questions)

    def hear(message: AnyMessage) -> None:
        if isinstance(message, kind):
            unanswered.pop(message.server, None)

    def say() -> None:
        for server, question in unanswered.items():
            post.send(server, question)

    say()
    receive_until(post, hear, lambda: not unanswered, idle=say)


def receive_until(
    post: Messenger,
    hear: Callable[[AnyMessage], None],
    until: Callable[[], bool],
    moved: Callable[[str], None] = lambda peer: None,
    idle: Callable[[], None] = lambda: None,
) -> None:
    """Pass every message to ``hear`` until a condition holds, and the name of a peer that moved to
    ``moved``. Call ``idle`` after a second without events. Raises MachineError if a peer is lost."""
    deadline = time.monotonic() + _SECONDS
    while not until():
        match post.receive(1.0):
            case Received(_, message):
                hear(message)
            case PeerMoved(peer):
                moved(peer)
            case Lost(peer, why):
                raise MachineError(f"{peer} was lost: {why}")
            case _ if time.monotonic() > deadline:
                raise MachineError(f"{post.endpoint.name} received nothing for {_SECONDS:g} s")
            case None:
                idle()
            case _:
                pass
