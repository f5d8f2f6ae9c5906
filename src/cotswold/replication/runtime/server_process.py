"""The process of a replica server: the server, with this process's memory and sockets.

Knows: the endpoint, when to drain the queues, the descriptions of runs. Does not know: groups, when replies
may be sent (`replication.replica`).

Messages that have arrived are processed first, so no pull waits behind updates. Updates are applied when no
message is left, or when many wait. So several pushes are one change, which the other replicas receive once.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

from cotswold import wire as m
from cotswold.host import keep_freed_memory
from cotswold.paramserver.runtime.server_metrics import ServerMetrics
from cotswold.phrases import short_in_words
from cotswold.processes.endpoint_settings import EndpointSettings
from cotswold.processes.supervisor_link import SupervisorLink
from cotswold.replication.client.client_names import ClientNames
from cotswold.replication.replica.server import ReplicaServer, ToReplicaServer
from cotswold.replication.replica.settings import ReplicationSettings
from cotswold.replication.runtime.disk import Disk, open_disk
from cotswold.replication.runtime.known_runs import KnownRuns
from cotswold.replication.runtime.networks import NetworkEndpoints, open_networks
from cotswold.replication.runtime.persistence import Persistence
from cotswold.replication.runtime.server_report import bucket_export, server_counts, server_report
from cotswold.shards.runtime.arithmetic import Array
from cotswold.transport import Lost, Ready
from cotswold.transport.address import Address
from cotswold.transport.token_rotation import TokenRotation
from cotswold.wire.lifecycle import (
    STOP_SECONDS,
    ControllerAddresses,
    CountersRequest,
    EventReport,
    ExportRequest,
    FlushBacklog,
    PeerAddresses,
    ServerReady,
    ServerReportRequest,
    StopProcess,
)
from cotswold.wire.messenger import AnyMessage, Messenger, Received, Reconnector
from cotswold.wire.names import run_of

_TICK_SECONDS = 0.05
_ROOM_SECONDS = STOP_SECONDS / 2
"""Seconds to wait, at the end, for room in the disk's queue."""
_BATCH = 256
"""Maximum number of messages between two applications of waiting updates."""
_MAX_UNREAD_BYTES = 1 << 24
"""Unread bytes of a client from which on it gets no further reply to a pull."""
_RECEIVED = get_args(ToReplicaServer)
_OFTEN = (m.BucketEnvelope, m.Prepare, m.Prepared)


def main(
    *,
    name: str,
    host: str,
    coordinator: str,
    controllers: Mapping[str, str],
    endpoint_settings: Mapping[str, Any],
    copying: Mapping[str, Any],
    disk: str | None = None,
    flush_seconds: float = 1.0,
    networks: Mapping[str, str] | None = None,
    tokens: str | None = None,
    key: str = "",
) -> int:
    """Run the server ``name`` on ``host``, whose coordinator is at the address ``coordinator``.

    ``controllers``: address by name; ``endpoint_settings`` has the fields of `EndpointSettings`, ``copying``
    those of `ReplicationSettings`. The folder ``disk``, if any, has the state of ``flush_seconds`` ago.
    ``networks``: addresses of this machine for `REPLICATION` and `UPDATES`, if different from that of
    ``endpoint_settings``. The tokens are in the file ``tokens``, or the token is in the environment. ``key``
    proves this server's name to controllers and other servers. Raises MachineError if the coordinator exits
    first, and the errors of the disk.
    """
    keep_freed_memory()  # of messages: the next ones reuse the same pages
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the coordinator stops it after the processes that need it
    with ExitStack() as held:
        ring = TokenRotation.of_file(tokens)
        ways = open_networks(
            name,
            EndpointSettings(**endpoint_settings),
            networks or {},
            held,
            None if ring is None else ring.ring,
        )
        ways.administration.connect(m.COORDINATOR, coordinator)
        messenger = Messenger(ways.all)
        messenger.send(m.COORDINATOR, ServerReady(name, ways.administration.address))
        saving = replace(ReplicationSettings(**copying), saves=disk is not None)
        role = ReplicaServerProcess(
            name, host, messenger, controllers, saving, ways, SupervisorLink(coordinator, ring), key
        )
        if disk is None:
            role.run()
        else:
            with open_disk(Path(disk), flush_seconds, role.saved, role.damaged, role.report) as own:
                role.save(own, flush_seconds)
                role.run()
                role.finish()
    return 0


class ReplicaServerProcess:
    """Process of one replica server."""

    def __init__(
        self,
        name: str,
        host: str,
        messenger: Messenger,
        controllers: Mapping[str, str],
        copying: ReplicationSettings,
        endpoints: NetworkEndpoints,
        supervisor_link: SupervisorLink,
        key: str = "",
    ) -> None:
        self._key = key
        self._name, self._messenger, self._controllers, self._endpoints = (
            name,
            messenger,
            dict(controllers),
            endpoints,
        )
        self._runs = KnownRuns(self._report_malformed)
        self._machine: ReplicaServer[Array] = ReplicaServer(
            *(name, host, endpoints.updates.address, self._runs.contents, copying, time.monotonic()),
            endpoints.replication.address,
        )
        self._supervisor_link = supervisor_link
        for way in endpoints.endpoints:
            way.key = key
            way.reserve_name(m.COORDINATOR)
        self._accept_only_answers(controllers)
        self._controller_reconnector = Reconnector(lambda address: endpoints.administration)
        self._peers: dict[str, str] = {}
        """Servers of its buckets and their addresses."""
        self._peer_reconnector = Reconnector(lambda address: endpoints.replication)
        self._clients = ClientNames()
        self._work = ServerMetrics()
        self._is_due = False
        """True if a message has arrived since queues were drained: held updates wait for that."""
        self._sends: list[m.Send] = []
        """Messages to be sent together."""
        self._queued_buckets: set[str] = set()
        """Buckets whose numbers, in place in memory, may be part of these."""
        self._processed = 0
        """Number of messages processed since these were sent."""
        self._ticked = 0.0
        self._disk: Disk | None = None
        self._under_replicated = 0, 0
        """Buckets that waited for members at the last event about them."""
        self._persistence: Persistence | None = None

    def save(self, disk: Disk, flush_seconds: float) -> None:
        """Save changes to a disk within ``flush_seconds``."""
        self._disk = disk
        self._machine.found_on_disk(disk.buckets, disk.cluster)
        self._persistence = Persistence(self._machine, disk, flush_seconds, time.monotonic())
        self._messenger.endpoint.watch(disk.fileno())

    def run(self) -> None:
        """Serve until the coordinator stops it; raises MachineError if the coordinator is lost."""
        while self._attend(self._messenger.receive(0.0 if self._is_due or self._sends else _TICK_SECONDS)):
            if self._processed >= _BATCH:
                self._flush_and_drain()
            self._tick(time.monotonic())

    def finish(self) -> None:
        """Apply the waiting updates, and give the disk all changes, as far as it has room within a while."""
        self._flush_and_drain()
        deadline = time.monotonic() + _ROOM_SECONDS
        while self._persistence is not None and not self._persistence.finish(time.monotonic()):
            if time.monotonic() > deadline:
                self.report("it stops, and its disk has no room for all changes")
                return
            time.sleep(_TICK_SECONDS)

    def _attend(self, event: object) -> bool:
        """Process an event; False to stop. Only kept messages are referenced afterwards."""
        match event:
            case Received(sender, StopProcess()) if sender == m.COORDINATOR:
                return False
            case Received(sender, message):
                self._on_message(sender, message)
            case None:
                self._flush_and_drain()
            case Ready() if self._disk is not None:
                self._disk.run_callbacks()
            case Lost(peer, why) if peer == m.COORDINATOR and self._supervisor_link.on_lost(time.monotonic()):
                raise self._supervisor_link.closed_error(self._name, why)
            case _:
                pass
        return True

    def _on_message(self, sender: str, message: AnyMessage) -> None:
        if isinstance(message, _OFTEN):  # the most frequent ones
            self._process(sender, message)
            return
        match message:
            case PeerAddresses(addresses, keys) if sender in self._controllers:
                for name, pair in keys:
                    for way in self._endpoints.endpoints:
                        way.require_proof(name, pair)
                self._on_addresses(dict(addresses))
            case ControllerAddresses(addresses) if sender == m.COORDINATOR:
                known = [each for each in addresses if not each[1] or Address.is_valid(each[1])]
                self._controllers.update(known)
                self._accept_only_answers(name for name, _ in known)
            case m.RunDescription(run, description) if sender in self._controllers:
                if description and run not in self._runs:
                    self._learn(run, description)
            case ServerReportRequest(bucket):
                self._messenger.send(
                    sender, server_report(self._machine, self._endpoints, self._unsaved(), bucket)
                )
            case ExportRequest(bucket):
                whole = bucket_export(self._machine, bucket) or [
                    server_report(self._machine, self._endpoints, self._unsaved(), bucket)
                ]
                self._messenger.deliver([m.Send(sender, cast(m.Message, each)) for each in whole])
            case CountersRequest(run):
                refused = self._messenger.endpoint.rejections
                counts = server_counts(self._machine, self._work, refused, self._unsaved(run), run)
                self._messenger.send(sender, counts)
            case m.Assign() | m.Fence() | m.DiskStateRequest() | m.DeleteRun() | m.LeaseGrant() if (
                sender not in self._controllers
            ):
                self._messenger.endpoint.rejections["strangers"] += 1
            case m.Assign() | m.Fence() | m.DiskStateRequest() if run_of(_bucket(message)) not in self._runs:
                self._messenger.send(
                    sender, m.RunDescriptionRequest(run_of(_bucket(message)))
                )  # the controller sends it again
            case m.Assign() | m.Fence() | m.DiskStateRequest() if not self._runs.has_bucket(_bucket(message)):
                self._messenger.endpoint.rejections["malformed"] += 1
            case m.DeleteRun():
                self._process(sender, message)
                self._forget_runs()
            case _ if isinstance(message, _RECEIVED):
                self._process(sender, cast(ToReplicaServer, message))
            case _:
                pass

    def _on_addresses(self, addresses: Mapping[str, str]) -> None:
        """Update the addresses of servers; those without a common bucket are not called again."""
        groups = (each.group for each in self._machine.copies.values())
        known = {name for group in groups for name in group.all_servers}
        self._peers = {name: address for name, address in self._peers.items() if name in known}
        for name, address in addresses.items():
            if not Address.is_valid(address):
                self._messenger.endpoint.rejections["malformed"] += 1
            elif name != self._name:
                self._peers[name] = address
        self._peer_reconnector.connect(self._peers)

    def _accept_only_answers(self, names: Iterable[str]) -> None:
        """On every network, accept from controllers only the replies to connections made here."""
        for each in names:
            for way in self._endpoints.endpoints:
                way.accept_only_answers_of(each)

    def _learn(self, run: str, description: str) -> None:
        if not self._runs.learn(run, description):
            self._messenger.endpoint.rejections["malformed"] += 1
        elif self._disk is not None:
            self._disk.describe(run, description)

    def _forget_runs(self) -> None:
        """Forget runs without data here."""
        for run in self._runs.keep_only(self._machine.runs):
            self._clients.forget(run)
            if self._disk is not None:
                self._disk.describe(run, "")

    def _report_malformed(self, run: str, why: str) -> None:
        sentence = f"{self._name} cannot have copies of {run!r:.80}: malformed description ({why:.200})"
        self._messenger.send(
            m.COORDINATOR, EventReport("malformed_run", self._name, f"{sentence}; remove that run")
        )

    def _process(self, sender: str, message: ToReplicaServer) -> None:
        self._work.begin()
        if isinstance(message, m.BucketEnvelope):
            self._serve(sender, message)
        else:
            self._deliver(self._machine.receive(sender, message, time.monotonic()))
        self._processed += 1
        self._is_due = self._machine.is_busy

    def _serve(self, sender: str, message: m.BucketEnvelope) -> None:
        """Process a client's message."""
        if message.bucket in self._queued_buckets:
            self._flush()  # before numbers change that are waiting to be sent
        said = message.message
        if (
            isinstance(said, m.PullNewer)
            and self._messenger.endpoint.unread_bytes(sender) > _MAX_UNREAD_BYTES
        ):
            return  # it has not read its earlier pulls, and asks again
        if run_of(message.bucket) in self._runs:
            sender = self._clients.name(sender, run_of(message.bucket))
        self._deliver(self._machine.receive(sender, message, time.monotonic()))
        if isinstance(said, m.Update):
            self._work.count_update(sender, said)

    def _flush_and_drain(self) -> None:
        """Send replies and apply waiting updates: no message is left, or many were processed."""
        self._flush()
        if self._is_due:
            self._is_due = False
            self._work.begin()
            self._deliver(self._machine.drain(time.monotonic()))
            self._flush()
        self._work.end()

    def _flush(self) -> None:
        sends, self._sends, self._processed = self._sends, [], 0
        self._queued_buckets.clear()
        self._messenger.deliver(sends)

    def _tick(self, now: float) -> None:
        if now - self._ticked < _TICK_SECONDS:
            return
        self._ticked = now
        self._controller_reconnector.connect(
            {**self._controllers, m.COORDINATOR: self._supervisor_link.reconnect_address}
        )
        self._peer_reconnector.connect(self._peers)
        for sentence in self._supervisor_link.tick(self._endpoints.endpoints, now):
            report = EventReport("token_rotation", self._name, f"{self._name}: {sentence}")
            self._messenger.send(m.COORDINATOR, report)
        self._machine.address = self._endpoints.updates.address
        self._machine.peer_address = self._endpoints.replication.address
        self._deliver(self._machine.tick(now))
        self._is_due = self._is_due or self._machine.is_busy
        self._report_under_replicated()
        if self._persistence is not None:
            self._persistence.tick(now)

    # --- the disk ---

    def _unsaved(self, run: str = "") -> FlushBacklog | None:
        """Return the unsaved changes, if there is a disk."""
        return None if self._persistence is None else self._persistence.unsaved(run, time.monotonic())

    def saved(self, number: int) -> None:
        """Record that a write is durable."""
        self._machine.saved(number)

    def damaged(self, bucket: str) -> None:
        """Record that the disk has lost a bucket."""
        if not self._machine.damaged(bucket) and self._disk is not None:
            self._disk.forget(bucket)

    def report(self, sentence: str) -> None:
        """Report something about the disk."""
        self._messenger.send(m.COORDINATOR, EventReport("disk", self._name, sentence))

    def _deliver(self, sends: Sequence[m.Send]) -> None:
        """Queue messages; those for the controllers go to all of them, so any next leader knows the live
        servers."""
        for each in sends:
            message = each.message
            if isinstance(message, m.BucketEnvelope | m.Prepare):
                self._queued_buckets.add(message.bucket)
            if isinstance(message, m.BucketEnvelope | m.NotPrimary):
                peer = self._clients.peer(each.to, run_of(message.bucket))
                self._sends.append(each if peer == each.to else m.Send(peer, message))
            elif each.to == m.CONTROLLERS:
                message = replace(message, key=self._key) if isinstance(message, m.Heartbeat) else message
                self._sends += [m.Send(name, message) for name in self._controllers]
            else:
                self._sends.append(each)

    def _report_under_replicated(self) -> None:
        """Report when updates wait for members, and when they no longer do."""
        short = self._machine.under_replicated()
        if short != self._under_replicated:
            self._under_replicated = short
            sentence = (
                short_in_words(*short, self._machine.settings.min_members) or "no bucket waits for copies"
            )
            report = EventReport("under_replicated", self._name, f"{self._name}: {sentence}")
            self._messenger.send(m.COORDINATOR, report)


def _bucket(message: m.Assign | m.Fence | m.DiskStateRequest) -> str:
    return message.group.bucket if isinstance(message, m.Assign) else message.bucket
