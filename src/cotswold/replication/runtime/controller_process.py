"""The process of a controller: the controller, its endpoint, and the shared metadata store.

Knows: the endpoint, the location of the metadata, two threads. Does not know: placement, elections
(`replication.controller`).

A separate thread accesses the metadata store: a disk or a network may be slow, and leases must not wait for
it.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast, get_args

from cotswold.errors import MachineError
from cotswold.processes.endpoint_settings import EndpointSettings, open_endpoint
from cotswold.processes.supervisor_link import SupervisorLink
from cotswold.processes.worker_thread import WorkerThread
from cotswold.replication.controller.controller import Controller
from cotswold.replication.controller.event_text import GATHERED
from cotswold.replication.controller.leader_election import Read, StateRequest
from cotswold.replication.controller.messages import FromServers
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.replication.metadata import MetadataLocation, MetadataStore
from cotswold.replication.run_description import display_name
from cotswold.replication.runtime.authorization import Authorization, digest_of
from cotswold.transport import Endpoint, Lost, Ready
from cotswold.transport.names import pair_key
from cotswold.transport.token_rotation import TokenRotation
from cotswold.wire import COORDINATOR, Assign, Heartbeat, RunStatus, Send, StatusReply
from cotswold.wire.lifecycle import EventReport, PeerAddresses, ServerReady, StopProcess
from cotswold.wire.messenger import Messenger, Received, Reconnector

_TICK_SECONDS = 0.02
_UNAVAILABLE_SECONDS = 1.0
"""Seconds without access to the metadata before an event reports it."""
_IMPOSTOR_SECONDS = 60.0
"""Minimum interval between two events about an impostor of a server."""
_RECEIVED = get_args(FromServers)

StoreResult = dict[str, str] | bool | ValueError | None
"""Result of a request; an error if the store rejects the transaction."""
OnStoreResult = Callable[[StateRequest, StoreResult], None]


def main(
    *,
    name: str,
    coordinator: str,
    state: Mapping[str, Any],
    endpoint_settings: Mapping[str, Any],
    control: Mapping[str, Any],
    port: int | None = None,
    tokens: str | None = None,
) -> int:
    """Run the controller ``name``, whose coordinator is at the address ``coordinator``.

    ``state`` has the fields of `MetadataLocation`, ``endpoint_settings`` of `EndpointSettings`, ``control``
    of `ControllerSettings`. With ``port``, the controller listens there, for clients that know only the port.
    The token is in the environment. Raises MachineError if the coordinator exits first, and the errors of the
    metadata store.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the coordinator stops it after the processes that need it
    found = EndpointSettings(**endpoint_settings)
    if port is not None:
        found = replace(found, ports=(port, port), mode="curve")
    ring = TokenRotation.of_file(tokens)
    with open_endpoint(name, found, None if ring is None else ring.ring) as endpoint:
        endpoint.connect(COORDINATOR, coordinator)
        messenger = Messenger(endpoint)
        with MetadataThread(MetadataLocation(**state)) as kept:
            messenger.send(COORDINATOR, ServerReady(name, endpoint.address))
            ControllerProcess(
                name,
                messenger,
                kept,
                ControllerSettings(**control),
                endpoint,
                SupervisorLink(coordinator, ring),
            ).run()
    return 0


class MetadataThread:
    """A metadata store accessed from its own thread, one request at a time."""

    def __init__(self, place: MetadataLocation) -> None:
        self._worker_thread = WorkerThread()
        self._state: MetadataStore | None = None
        self.failure = ""
        """Why the last request failed; empty if it succeeded."""
        self._worker_thread.submit(partial(self._open, place))

    def __enter__(self) -> MetadataThread:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker_thread.submit(self._close)
        self._worker_thread.close()

    def fileno(self) -> int:
        """Return a descriptor that is readable when `run_callbacks` has results."""
        return self._worker_thread.fileno()

    def run_callbacks(self) -> None:
        """Deliver the results; raises the store's error if it is damaged."""
        self._worker_thread.run_callbacks()

    def submit(self, request: StateRequest, on_result: OnStoreResult) -> None:
        """Send a request; `run_callbacks` calls ``on_result`` with the result."""
        self._worker_thread.submit(partial(self._execute, request, on_result))

    def _open(self, place: MetadataLocation) -> None:
        self._state = place.open()

    def _close(self) -> None:
        if self._state is not None:
            self._state.close()

    def _execute(self, wish: StateRequest, answered: OnStoreResult) -> None:
        assert self._state is not None, "the store is open"
        found: StoreResult
        try:
            if isinstance(wish, Read):
                found = self._state.read(wish.prefix, wish.start, wish.limit)
            else:
                found = self._state.transact(wish.compare, wish.put)
            trouble = ""
        except MachineError as error:  # the next request may succeed; until then it leads no one
            found, trouble = None, str(error)
        except ValueError as error:  # rejected: nothing was changed
            if isinstance(wish, Read):
                raise
            found, trouble = error, ""
        self.failure = trouble
        self._worker_thread.call_in_main(partial(answered, wish, found))


class ControllerProcess:
    """Process of one controller."""

    def __init__(
        self,
        name: str,
        messenger: Messenger,
        state: MetadataThread,
        control: ControllerSettings,
        endpoint: Endpoint,
        supervisor_link: SupervisorLink,
    ) -> None:
        self._name, self._messenger, self._state = name, messenger, state
        self._machine = Controller(name, control, time.monotonic(), secrets.token_hex(6))
        self._authorization = Authorization(time.monotonic(), lambda: self._machine.keys)
        self._ticked = 0.0
        self._supervisor_link, self._endpoint = supervisor_link, endpoint
        endpoint.reserve_name(COORDINATOR)
        self._reconnector = Reconnector(lambda address: endpoint)
        self._failed_since: float | None = None
        """Time since when the metadata are unavailable."""
        self._is_failure_reported = False
        """True if that was reported."""
        self._run_names: dict[str, str] = {}
        """Run names for people, of the runs in the last status."""
        self._peer_addresses: dict[str, str] = {}
        """Peer addresses of servers, by their last heartbeats."""
        self._proved_keys: dict[str, str] = {}
        """Keys of servers that must prove their names, here and to the servers of their buckets."""
        self._impostors: dict[str, float] = {}
        """Time of the last report about an impostor of each server."""
        messenger.endpoint.watch(state.fileno())

    def run(self) -> None:
        """Run until the coordinator stops it; raises MachineError if the coordinator is lost."""
        while self._attend(self._messenger.receive(_TICK_SECONDS)):
            now = time.monotonic()
            self._tick(now)
            wish = self._machine.next_request(now)
            if wish is not None:
                self._state.submit(wish, self._on_result)

    def _tick(self, now: float) -> None:
        if now - self._ticked < _TICK_SECONDS:
            return
        self._ticked = now
        for sentence in self._supervisor_link.tick((self._endpoint,), now):
            report = EventReport("token_rotation", self._name, f"{self._name}: {sentence}")
            self._messenger.send(COORDINATOR, report)
        self._reconnector.connect({COORDINATOR: self._supervisor_link.reconnect_address})
        self._deliver(self._machine.tick(now))
        for event in self._machine.take_events():
            self._messenger.send(COORDINATOR, EventReport(event.kind, event.name, event.sentence))
        self._report_failure(now)
        self._forget_names(now)
        for event in self._machine.take_summaries(now):
            self._messenger.send(COORDINATOR, EventReport(GATHERED, event.name, event.sentence))

    def _attend(self, event: object) -> bool:
        match event:
            case Received(sender, StopProcess()) if sender == COORDINATOR:
                return False
            case Received(sender, message) if isinstance(message, _RECEIVED):
                self._on_message(sender, cast(FromServers, message), time.monotonic())
            case Ready():
                self._state.run_callbacks()
            case Lost(peer, why):
                self._authorization.on_lost(peer)
                if peer == COORDINATOR and self._supervisor_link.on_lost(time.monotonic()):
                    raise self._supervisor_link.closed_error(self._name, why)
            case _:
                pass
        return True

    def _on_message(self, sender: str, message: FromServers, now: float) -> None:
        if reason := self._authorization.rejection_reason(sender, message, now):
            self._messenger.endpoint.rejections[reason] += 1
            if (
                isinstance(message, Heartbeat)
                and sender == message.server
                and self._authorization.is_impostor(message)
            ):
                self._report_impostor(sender, now)
            return
        if isinstance(message, Heartbeat) and message.key:
            message = replace(message, key=digest_of(message.key))  # the controller stores it
        self._deliver(self._machine.receive(sender, message, now))
        if isinstance(message, Heartbeat) and message.server == sender:
            self._on_address(message)
            self._require_proof(sender)

    def _require_proof(self, server: str) -> None:
        """Require a proof of a server's name from now on: at this endpoint, and at the servers of its
        buckets. A server that has not proved its name to this endpoint yet is left as it is."""
        key = self._authorization.key_of(server)
        if not key or self._proved_keys.get(server) == key:
            return
        pair = pair_key(key, self._name)
        if not self._endpoint.has_proved(server, pair):
            return
        self._proved_keys[server] = key
        self._endpoint.require_proof(server, pair)
        for each in self._machine.peers_of(server):
            self._messenger.send(each, PeerAddresses((), ((server, pair_key(key, each)),)))

    def _forget_names(self, now: float) -> None:
        """Stop requiring proofs of servers that are unknown or silent: any process may connect under these
        names, and its messages decide."""
        known, silent = self._machine.servers.of, self._authorization.is_silent
        for name in [each for each in self._proved_keys if each not in known or silent(each, now)]:
            del self._proved_keys[name]
            self._endpoint.require_proof(name, "")

    def _report_impostor(self, server: str, now: float) -> None:
        """Report, now and then, a process that uses a server's name with another key."""
        if now - self._impostors.get(server, float("-inf")) < _IMPOSTOR_SECONDS:
            return
        self._impostors = {name: at for name, at in self._impostors.items() if name in self._machine.keys}
        self._impostors[server] = now
        sentence = (
            f"a process uses the name {server} without that server's key and is rejected; if "
            "its host was reset to an earlier state, restart the host's 'cotswold cluster'"
        )
        self._machine.note("unknown_server", server, sentence, now)

    def _report_failure(self, now: float) -> None:
        """Report once that the metadata are unavailable, and why, and once that they are back."""
        trouble = self._state.failure
        if trouble and self._failed_since is None:
            self._failed_since = now
        if (
            trouble
            and not self._is_failure_reported
            and now - (self._failed_since or now) > _UNAVAILABLE_SECONDS
        ):
            self._is_failure_reported = True
            said = f"{self._name} cannot read or write its state and does not lead without it: {trouble}"
            self._messenger.send(COORDINATOR, EventReport("metadata", self._name, said))
        if not trouble and self._failed_since is not None:
            said = f"{self._name} reads and writes its state again, after {now - self._failed_since:.0f} s"
            if self._is_failure_reported:
                self._messenger.send(COORDINATOR, EventReport("metadata", self._name, said))
            self._failed_since, self._is_failure_reported = None, False

    def _on_address(self, here: Heartbeat) -> None:
        """Send the new address of a server to the others."""
        address = here.peer_address or here.address
        if here.server not in self._peer_addresses:
            known = self._machine.servers.of
            self._peer_addresses = {
                name: each for name, each in self._peer_addresses.items() if name in known
            }
        before, self._peer_addresses[here.server] = self._peer_addresses.get(here.server, address), address
        if before != address:
            for each in self._machine.servers.live:
                if each.name != here.server:
                    self._messenger.send(each.name, PeerAddresses(((here.server, address),)))

    def _on_result(self, request: StateRequest, found: StoreResult) -> None:
        now, machine = time.monotonic(), self._machine
        if isinstance(found, ValueError):
            sentence = f"the state rejected a transaction of {self._name}, which is discarded: {found}"
            self._messenger.send(COORDINATOR, EventReport("refused", self._name, sentence))
            found = False
        if not isinstance(request, Read):
            self._deliver(machine.on_transaction(cast(bool | None, found), now))
        elif found is None:
            self._deliver(machine.on_read_failed())
        else:
            self._deliver(machine.on_read(cast(dict[str, str], found), now))

    def _deliver(self, sends: Sequence[Send]) -> None:
        """Send groups; before each, send the addresses of the group's servers."""
        named: dict[str, set[str]] = {}
        for each in sends:
            if isinstance(each.message, Assign):
                named.setdefault(each.to, set()).update(each.message.group.all_servers)
        for server, names in named.items():
            others = sorted(names)
            self._messenger.send(
                server, PeerAddresses(tuple(self._addresses(others)), self._pair_keys(others, server))
            )
        self._messenger.deliver(map(self._completed, sends))

    def _completed(self, send: Send) -> Send:
        """Add to a status: this process, rejected messages, and the names of runs."""
        if not isinstance(send.message, StatusReply):
            return send
        refused = tuple(sorted(self._messenger.endpoint.rejections.items()))
        runs = self._with_names(send.message.runs)
        return replace(send, message=replace(send.message, refused=refused, process=os.getpid(), runs=runs))

    def _with_names(self, runs: Sequence[RunStatus]) -> tuple[RunStatus, ...]:
        described, known = self._machine.descriptions, self._run_names
        self._run_names = {
            each.run: known[each.run] if each.run in known else display_name(described[each.run])
            for each in runs
            if each.run in described
        }
        return tuple(replace(each, name=self._run_names.get(each.run, "")) for each in runs)

    def _pair_keys(self, names: Sequence[str], to: str) -> tuple[tuple[str, str], ...]:
        """Return the keys with which these servers prove their names to another."""
        keys = {name: self._proved_keys[name] for name in names if name != to and name in self._proved_keys}
        return tuple((name, pair_key(key, to)) for name, key in keys.items())

    def _addresses(self, names: Sequence[str]) -> list[tuple[str, str]]:
        known = self._machine.servers.of
        return [
            (name, known[name].peer_address) for name in names if name in known and known[name].peer_address
        ]
