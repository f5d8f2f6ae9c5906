"""The way from a run to a cluster that outlives it: by the cluster's token, on the network where each server
is.

Knows: addresses of this machine on its networks, endpoints of a client. Does not know: who is called,
messages.

A cluster may have a network for pushes and pulls, and another for controllers. What a client is answered
comes by the network of the address that it gave: so it has an endpoint on each network on which it calls
somebody."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cotswold.host import Token
from cotswold.host.keyring import KeyringFile
from cotswold.processes.endpoint_settings import Reach, own_endpoint, own_host
from cotswold.replication.runtime.client_names import scoped
from cotswold.transport import Endpoint, Roads
from cotswold.transport.address import Address
from cotswold.transport.token_rotation import Rotating, required_tokens

_RUN = "run"


@dataclass(frozen=True)
class Standing:
    """A cluster that outlives runs, as the processes of one are told of it."""

    controllers: Mapping[str, str]
    """Address by name."""
    run: str
    """What the run is called there."""


class Outward:
    """The endpoints of the process called ``name`` towards a cluster; `Roads` closes them."""

    def __init__(self, name: str, run: str, reach: Reach, tokens: Token | KeyringFile | None = None) -> None:
        """``reach``: as for the run's own processes. Tokens are as the environment says where none are
        given."""
        found = tokens or required_tokens(os.environ)
        self._name, self._tokens, self._reach = scoped(name, run), Rotating(found), reach
        self._ways: dict[str | None, Endpoint] = {}
        self._own: dict[str, str | None] = {}
        """This machine's address on the network of another."""
        self._roads: Roads | None = None

    def roads(self, run: Endpoint) -> Roads:
        """The run's own endpoint, and these."""
        self._roads = Roads({_RUN: run})
        return self._roads

    def way(self, address: str) -> Endpoint:
        """The endpoint on the network of an address; raises MachineError where there is no way to it."""
        assert self._roads is not None, "they are among roads"
        self._tokens.tick(self._ways.values(), time.monotonic())
        towards = Address.parsed(address).tcp_host
        if towards not in self._own:
            self._own[towards] = own_host(towards)
        own = self._own[towards]
        if own not in self._ways:
            here = replace(self._reach, towards=towards, at=own)
            self._ways[own] = own_endpoint(self._name, here, self._tokens.ring)
            self._ways[own].keep_answers()  # servers and controllers are called, and call nobody first
            self._roads.add(f"servers {own}", self._ways[own])
        return self._ways[own]
