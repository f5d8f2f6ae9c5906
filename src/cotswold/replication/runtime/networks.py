"""The networks of a parameter server: one each for updates, replication and administration.

Knows: addresses of this machine, endpoints. Does not know: the messages on each.

A machine may have a separate network for each: pushes and pulls of clients; replication between servers;
leases and groups from controllers. Source: Chilimbi et al. 2014, section 3.3.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from cotswold.host import Token
from cotswold.host.keyring import Keyring
from cotswold.processes.endpoint_settings import EndpointSettings, open_endpoint
from cotswold.transport import Endpoint, MultiEndpoint

ADMINISTRATION, REPLICATION, UPDATES = "administration", "replication", "updates"


@dataclass(frozen=True)
class NetworkEndpoints:
    """An endpoint for each network; several may be the same."""

    administration: Endpoint
    replication: Endpoint
    updates: Endpoint

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Each distinct endpoint once."""
        return tuple(dict.fromkeys((self.administration, self.replication, self.updates)))

    @property
    def all(self) -> Endpoint | MultiEndpoint:
        """All endpoints as one."""
        if self.administration is self.replication is self.updates:
            return self.administration
        return MultiEndpoint(
            {ADMINISTRATION: self.administration, REPLICATION: self.replication, UPDATES: self.updates}
        )


def open_networks(
    name: str,
    endpoint_settings: EndpointSettings,
    networks: Mapping[str, str],
    held: ExitStack,
    token: Token | Keyring | None = None,
) -> NetworkEndpoints:
    """Open the endpoints of a process; they close with ``held``. ``networks``: addresses of this machine for
    `REPLICATION` and `UPDATES`, if different from that of ``endpoint_settings``. Raises as
    `open_endpoint`."""
    endpoints: dict[str | None, Endpoint] = {}

    def at(network: str) -> Endpoint:
        where = networks.get(network, endpoint_settings.at)
        if where not in endpoints:
            endpoints[where] = held.enter_context(
                open_endpoint(name, replace(endpoint_settings, at=where), token)
            )
        return endpoints[where]

    return NetworkEndpoints(at(ADMINISTRATION), at(REPLICATION), at(UPDATES))
