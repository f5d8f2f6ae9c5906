"""Processes of replicated servers for measurements.

Knows: how to start a controller and servers, and give them buckets, a vector, sessions and rates. Does not
know: what is measured.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from cotswold import wire as m
from cotswold.bench.server.site import Site
from cotswold.bench.server.unreplicated_servers import (
    RUN,
    Model,
    counts_of,
    order,
    receive_until,
    write_zeros,
)
from cotswold.errors import MachineError
from cotswold.host import Call, ForkServer, Process, is_readable
from cotswold.replication.client.routed_messenger import RoutedMessenger
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.replication.metadata import MetadataLocation
from cotswold.replication.replica.settings import ReplicationSettings, Topology
from cotswold.replication.run_description import Description
from cotswold.wire.lifecycle import ServerCounters, ServerReady, StopProcess
from cotswold.wire.messenger import AnyMessage, Messenger

CONTROLLER = "controller-0"
_SECONDS, _WAIT_SECONDS = 30.0, 0.1
_NEVER = 1e9
LEASE_SECONDS = 1.0


class ReplicatedServers:
    """Replicated servers of a model that accept pushes of ``sessions``; use in a ``with`` statement."""

    def __init__(
        self,
        processes: ForkServer,
        model: Model,
        sessions: Sequence[str],
        site: Site,
        *,
        copies: int,
        servers: int = 0,
        buckets: int = 64,
        way: Topology = "star",
        is_led_by_one: bool = False,
    ) -> None:
        """``servers``: number of servers (default: the number of copies). ``is_led_by_one``: the first
        server stays the primary of all buckets."""
        self.model, self._site, self._topology = model, site, way
        self._count, self._copies, self._forked = servers or copies, copies, processes
        self._servers: dict[str, Process] = {}
        self._number = 0
        described = Description(RUN, model.layout, model.dtype, model.shard_bytes, buckets, model.as_dict)
        self.shards, self.buckets = described.shards, described.buckets
        self._addresses: dict[str, str] = {}
        self._exit_stack = ExitStack()
        self._post = RoutedMessenger(self._site.endpoint(m.COORDINATOR), {CONTROLLER: ""})
        self._client = self._post
        try:
            own = self._site.client()
            if own is not None:
                self._client = RoutedMessenger(own, {CONTROLLER: ""})
            folder = Path(self._exit_stack.enter_context(tempfile.TemporaryDirectory(prefix="cotswold-")))
            self._start(folder, is_led_by_one)
            for post in (self._post, self._client):
                post.find(self.controllers)
                post.connect((bucket, "") for bucket in self.buckets)
            self._make(m.Create(RUN, described.text, self.buckets, len(self._servers)))
            write_zeros(self._client, model, self.shards)
            order(self._client, self.buckets, sessions)
            for _ in range(len(self._servers), self._count):  # receive copies from the first server
                self.start_server()
            self.wait_until_replicated()
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the running servers."""
        return tuple(self._servers)

    @property
    def controllers(self) -> dict[str, str]:
        """Address of the controller for clients."""
        return {CONTROLLER: self._addresses[CONTROLLER]}

    def counts(self) -> list[ServerCounters]:
        """Counters of the servers so far."""
        return counts_of(self._post, self.names)

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a server."""
        self._servers[name].send(number)

    def report_exit(self, name: str) -> None:
        """Wait for a server process's exit, and report it to the controller."""
        process = self._servers.pop(name)
        is_readable(process, _SECONDS)
        self._post.send(m.CONTROLLERS, m.ServerExited(name, process.why()))
        self._post.endpoint.flush(_SECONDS)
        process.end()

    def start_server(self) -> None:
        """Start another server, and wait until it is connected."""
        name = f"server-{self._number}"
        self._number += 1
        told = {
            "host": name,
            "controllers": self.controllers,
            "copying": asdict(ReplicationSettings(topology=self._topology)),
        }
        self._servers[name] = self._forked.start(self._call(name, "keeper", told))
        receive_until(self._post, self._serving, lambda: name in self._addresses)

    def wait_until_replicated(self) -> None:
        """Wait until every bucket has all of its copies, each complete."""
        deadline = time.monotonic() + _SECONDS
        while not self._is_whole:
            self._post.find_primaries()
            self._post.receive(_WAIT_SECONDS)
            if time.monotonic() > deadline:
                raise MachineError(f"buckets are not fully replicated after {_SECONDS:g} s")

    @property
    def _is_whole(self) -> bool:
        groups, there = self._post.groups, set(self._servers)
        return len(groups) == len(self.buckets) and all(
            there.issuperset(each.members) and len(each.members) == self._copies and not each.learners
            for each in groups.values()
        )

    def close(self) -> None:
        """End all processes."""
        processes = Messenger(self._post.endpoint)  # by name, independent of the location of buckets
        for name in self._addresses:
            processes.send(name, StopProcess())
        for post in (self._client, self._post):
            post.endpoint.close()
        for process in self._servers.values():
            process.end()
        self._exit_stack.close()

    def __enter__(self) -> ReplicatedServers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self, folder: Path, is_led_by_one: bool) -> None:
        control = asdict(ControllerSettings(replication_factor=self._copies, lease_seconds=LEASE_SECONDS))
        if is_led_by_one:
            control["handover_seconds"] = _NEVER
        state = {"state": asdict(MetadataLocation(sqlite=str(folder / "state.sqlite"))), "control": control}
        process = self._forked.start(self._call(CONTROLLER, "controller", state))
        self._exit_stack.callback(process.end)
        receive_until(self._post, self._serving, lambda: bool(self._addresses))
        self._post.find(self.controllers)
        for _ in range(1 if is_led_by_one else self._count):
            self.start_server()

    def _make(self, wanted: m.Create) -> None:
        """Create buckets, and wait until each has an active primary."""
        deadline = time.monotonic() + _SECONDS
        while self._post.unknown:
            self._post.send(m.CONTROLLERS, wanted)
            self._post.find_primaries()
            self._post.receive(_WAIT_SECONDS)
            if time.monotonic() > deadline:
                raise MachineError(f"{len(self._post.unknown)} buckets have no primary after {_SECONDS:g} s")
        time.sleep(LEASE_SECONDS / 2)  # within this time primaries receive their groups and leases

    def _call(self, name: str, role: str, more: Mapping[str, object]) -> Call:
        told = {"coordinator": self._post.endpoint.address, **more}
        return self._site.call(name, role, told)

    def _serving(self, message: AnyMessage) -> None:
        if isinstance(message, ServerReady):
            self._addresses[message.name] = message.address
