"""Endpoints of a run's process in the network of a cluster that outlives it, with the cluster's token.

Knows: addresses of this machine on its networks, endpoints of a client. Does not know: peers, messages.

A cluster may have one network for pushes and pulls, and another for controllers. Replies reach a client by
the network of the address that it gave. So the client has an endpoint on each network that it uses.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

from cotswold.host import Token
from cotswold.host.keyring import KeyringFile
from cotswold.processes.endpoint_settings import EndpointSettings, local_address, open_endpoint
from cotswold.replication.client.client_names import scoped
from cotswold.transport import Endpoint, MultiEndpoint
from cotswold.transport.address import Address
from cotswold.transport.token_rotation import TokenRotation, required_tokens

_RUN = "run"


class ClusterEndpoints:
    """Endpoints of the process ``name`` towards a cluster; `MultiEndpoint` closes them."""

    def __init__(
        self,
        name: str,
        run: str,
        endpoint_settings: EndpointSettings,
        tokens: Token | KeyringFile | None = None,
    ) -> None:
        """``endpoint_settings``: settings of the run's own endpoints; ``tokens`` [from the environment]."""
        found = tokens or required_tokens(os.environ)
        self._name, self._tokens, self._endpoint_settings = (
            scoped(name, run),
            TokenRotation(found),
            endpoint_settings,
        )
        self._by_host: dict[str | None, Endpoint] = {}
        self._own_hosts: dict[str, str | None] = {}
        """Address of this machine on the network of a given host."""
        self._multi_endpoint: MultiEndpoint | None = None

    def networks(self, run: Endpoint) -> MultiEndpoint:
        """Return the run's own endpoint together with these."""
        self._multi_endpoint = MultiEndpoint({_RUN: run})
        return self._multi_endpoint

    def endpoint_to(self, address: str) -> Endpoint:
        """Return the endpoint on the network of an address; raises MachineError if there is no route to
        it."""
        assert self._multi_endpoint is not None, "the endpoints were combined"
        self._tokens.tick(self._by_host.values(), time.monotonic())
        towards = Address.parsed(address).tcp_host
        if towards not in self._own_hosts:
            self._own_hosts[towards] = local_address(towards)
        own = self._own_hosts[towards]
        if own not in self._by_host:
            here = replace(self._endpoint_settings, towards=towards, at=own)
            self._by_host[own] = open_endpoint(self._name, here, self._tokens.ring)
            self._by_host[own].accept_only_answers()  # servers and controllers do not connect to clients
            self._multi_endpoint.add(f"servers {own}", self._by_host[own])
        return self._by_host[own]
