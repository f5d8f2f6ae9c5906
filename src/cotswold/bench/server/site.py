"""Location of the processes of a measurement: all on this host, or each on a host with a slow link.

Knows: how processes are called and connected in either. Does not know: what processes do, what is measured.

A host with links has two network cards of the same speed: leases and orders use the second, so that they do
not wait behind the measured traffic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from cotswold.bench.server.unreplicated_servers import RUN, Transport, endpoint_on, environ_of, reach_of
from cotswold.host import Call, Token
from cotswold.host.processes import import_function
from cotswold.host.token import VARIABLE
from cotswold.processes.endpoint_settings import EndpointSettings
from cotswold.processes.programs import PROGRAMS
from cotswold.replication.client.client_names import scoped
from cotswold.replication.runtime.networks import REPLICATION, UPDATES
from cotswold.testing.hosts import Hosts
from cotswold.testing.namespaces import entered
from cotswold.transport import Endpoint
from cotswold.wire import COORDINATOR

DATA, ORDERS = 0, 1
"""Indices of a host's network cards."""


class Site(Protocol):
    """A location of processes that share a token."""

    @property
    def token(self) -> Token:
        """The token of the processes."""
        ...

    def endpoint(self, name: str) -> Endpoint:
        """Create an endpoint of this process."""
        ...

    def client(self) -> Endpoint | None:
        """Create an endpoint of this process as a client of buckets; None to use the coordinator's."""
        ...

    def call(self, name: str, role: str, told: Mapping[str, object]) -> Call:
        """The call of a process with a role of the cluster."""
        ...


@dataclass(frozen=True)
class SingleHost:
    """All processes on this host."""

    transport: Transport
    token: Token = field(default_factory=Token.new)

    def endpoint(self, name: str) -> Endpoint:
        """Create an endpoint of this process."""
        return endpoint_on(self.transport, self.token, name)

    def client(self) -> None:
        """None: the coordinator's endpoint is used."""

    def call(self, name: str, role: str, told: Mapping[str, object]) -> Call:
        """The call of a process with a role of the cluster."""
        arguments = {"name": name, "endpoint_settings": reach_of(self.transport).as_dict(), **told}
        return Call(name, PROGRAMS[role], arguments, environ_of(self.transport, self.token))


@dataclass(frozen=True)
class LinkedHosts:
    """Each server on a separate host, from host 1 on; this process and the controller on host 0."""

    hosts: Hosts
    token: Token
    _host_numbers: dict[str, int] = field(default_factory=dict)

    def endpoint(self, name: str) -> Endpoint:
        """Create an endpoint of this process."""
        return self._local_endpoint(name, ORDERS)

    def client(self) -> Endpoint:
        """Create an endpoint named like a client of a standalone cluster."""
        return self._local_endpoint(scoped(COORDINATOR, RUN), DATA)

    def _local_endpoint(self, name: str, card: int) -> Endpoint:
        with self.hosts.entered(0):
            return Endpoint(self.token, name, host=self.hosts.address(0, card), encrypt=False, apart=True)

    def call(self, name: str, role: str, told: Mapping[str, object]) -> Call:
        """The call of a process with a role of the cluster."""
        host, networks = 0, dict[str, object]()
        if role == "keeper":
            host = self._host_numbers.setdefault(name, 1 + len(self._host_numbers))
            data = self.hosts.address(host, DATA)
            networks = {"networks": {REPLICATION: data, UPDATES: data}}
        towards, at = self.hosts.address(0, ORDERS), self.hosts.address(host, ORDERS)
        reach = EndpointSettings(towards, encrypt=False, apart=True, at=at).as_dict()
        arguments = {"name": name, "endpoint_settings": reach, **networks, **told}
        return self.call_on(host, name, PROGRAMS[role], arguments)

    def call_on(self, host: int, name: str, function: str, arguments: Mapping[str, object]) -> Call:
        """The call of a function on a host."""
        namespace = str(self.hosts.namespace(host))
        told = {"namespace": namespace, "function": function, "arguments": dict(arguments)}
        return Call(name, f"{__name__}:call_in_namespace", told, {VARIABLE: self.token.text})


def call_in_namespace(*, namespace: str, function: str, arguments: Mapping[str, Any]) -> int:
    """Call a function on a host."""
    with entered(Path(namespace)):
        return cast(int, import_function(function)(**arguments))
