"""The roads of a parameter server: updates, replication with what it says to controllers apart from both.

Knows: addresses of this machine, endpoints. Does not know: who says what on which.

A machine may have a network for each: clients push and pull by one, servers replicate by another, leases and
orders come by a third. Source: Chilimbi et al. 2014, section 3.3.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from cotswold.host import Token
from cotswold.host.keyring import Keyring
from cotswold.processes.endpoint_settings import Reach, own_endpoint
from cotswold.transport import Endpoint, Roads

ADMINISTRATION, REPLICATION, UPDATES = "administration", "replication", "updates"


@dataclass(frozen=True)
class Ways:
    """An endpoint for each road, several of which may be one."""

    administration: Endpoint
    replication: Endpoint
    updates: Endpoint

    @property
    def each(self) -> tuple[Endpoint, ...]:
        """Every one once."""
        return tuple(dict.fromkeys((self.administration, self.replication, self.updates)))

    @property
    def all(self) -> Endpoint | Roads:
        """As one."""
        if self.administration is self.replication is self.updates:
            return self.administration
        return Roads(
            {ADMINISTRATION: self.administration, REPLICATION: self.replication, UPDATES: self.updates}
        )


def open_ways(
    name: str, reach: Reach, roads: Mapping[str, str], held: ExitStack, token: Token | Keyring | None = None
) -> Ways:
    """Those of a process, which end with ``held``. ``roads``: addresses of this machine for `REPLICATION` and
    `UPDATES`, where they are others than that of ``reach``. Raises as `own_endpoint`."""
    endpoints: dict[str | None, Endpoint] = {}

    def at(road: str) -> Endpoint:
        where = roads.get(road, reach.at)
        if where not in endpoints:
            endpoints[where] = held.enter_context(own_endpoint(name, replace(reach, at=where), token))
        return endpoints[where]

    return Ways(at(ADMINISTRATION), at(REPLICATION), at(UPDATES))
