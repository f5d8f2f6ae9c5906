"""Where the processes of a measurement stand: all on this host, or each on a host with a slow link.

Knows: how a process is called and reached at either. Does not know: what processes do, what is measured.

A host with links has two cards of the same speed: leases and orders go by the second, so that they do not
wait behind what is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from cotswold.bench.server.served import RUN, Road, endpoint_on, environ_of, reach_of
from cotswold.host import Call, Token
from cotswold.host.processes import import_function
from cotswold.host.token import VARIABLE
from cotswold.processes.endpoint_settings import Reach
from cotswold.processes.programs import PROGRAMS
from cotswold.replication.runtime.client_names import scoped
from cotswold.replication.runtime.networks import REPLICATION, UPDATES
from cotswold.testing.hosts import Hosts
from cotswold.testing.namespaces import entered
from cotswold.transport import Endpoint
from cotswold.wire import COORDINATOR

DATA, ORDERS = 0, 1
"""Cards of a host."""


class Site(Protocol):
    """One of them, for processes that share a token."""

    @property
    def token(self) -> Token:
        """Theirs."""
        ...

    def endpoint(self, name: str) -> Endpoint:
        """Of this process."""
        ...

    def client(self) -> Endpoint | None:
        """Of this process as a client of buckets; None where that is the same."""
        ...

    def call(self, name: str, role: str, told: Mapping[str, object]) -> Call:
        """Of a process with a role of the cluster."""
        ...


@dataclass(frozen=True)
class OneHost:
    """All are here."""

    road: Road
    token: Token = field(default_factory=Token.new)

    def endpoint(self, name: str) -> Endpoint:
        """Of this process."""
        return endpoint_on(self.road, self.token, name)

    def client(self) -> None:
        """The same."""

    def call(self, name: str, role: str, told: Mapping[str, object]) -> Call:
        """Of a process with a role of the cluster."""
        arguments = {"name": name, "reach": reach_of(self.road).said(), **told}
        return Call(name, PROGRAMS[role], arguments, environ_of(self.road, self.token))


@dataclass(frozen=True)
class LinkedHosts:
    """Servers are on hosts of their own, from host 1 on; this process and the controller are on host 0."""

    hosts: Hosts
    token: Token
    _places: dict[str, int] = field(default_factory=dict)

    def endpoint(self, name: str) -> Endpoint:
        """Of this process."""
        return self._here(name, ORDERS)

    def client(self) -> Endpoint:
        """Called as a client of a cluster that stands is."""
        return self._here(scoped(COORDINATOR, RUN), DATA)

    def _here(self, name: str, card: int) -> Endpoint:
        with self.hosts.entered(0):
            return Endpoint(self.token, name, host=self.hosts.address(0, card), encrypt=False, apart=True)

    def call(self, name: str, role: str, told: Mapping[str, object]) -> Call:
        """Of a process with a role of the cluster."""
        host, roads = 0, dict[str, object]()
        if role == "keeper":
            host = self._places.setdefault(name, 1 + len(self._places))
            data = self.hosts.address(host, DATA)
            roads = {"roads": {REPLICATION: data, UPDATES: data}}
        towards, at = self.hosts.address(0, ORDERS), self.hosts.address(host, ORDERS)
        reach = Reach(towards, encrypt=False, apart=True, at=at).said()
        arguments = {"name": name, "reach": reach, **roads, **told}
        return self.on(host, name, PROGRAMS[role], arguments)

    def on(self, host: int, name: str, function: str, arguments: Mapping[str, object]) -> Call:
        """Of any function, on a host."""
        namespace = str(self.hosts.namespace(host))
        told = {"namespace": namespace, "function": function, "arguments": dict(arguments)}
        return Call(name, f"{__name__}:on_host", told, {VARIABLE: self.token.text})


def on_host(*, namespace: str, function: str, arguments: Mapping[str, Any]) -> int:
    """Call a function on a host."""
    with entered(Path(namespace)):
        return cast(int, import_function(function)(**arguments))
