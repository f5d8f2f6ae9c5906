"""A cluster that outlives runs, as used by one run.

Knows: the controllers, how buckets are created and deleted. Does not know: groups, how the cluster is started
(`replication.runtime.host_supervisor`).
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from cotswold.errors import UserError
from cotswold.files import MalformedError, read_object, replace_file, take
from cotswold.replication.client.new_events import NewEvents
from cotswold.replication.client.routed_messenger import RoutedMessenger
from cotswold.transport.address import Address, is_ipv6
from cotswold.wire import (
    CONTROLLERS,
    ClusterEvent,
    Create,
    DeleteRunRequest,
    RunDeleted,
    StatusReply,
    StatusRequest,
)
from cotswold.wire.lifecycle import CountersRequest, ServerReady
from cotswold.wire.messenger import Received

PORT = 7400
"""Default port of a controller."""
_STATUS_SECONDS = 2.0
_SILENT_SECONDS = 3.0
_DELETE_SECONDS = 3.0
_RETRY_SECONDS = 0.3
_AGAIN = (
    "cotswold cluster status says which, and docs/operations.md how to restore the state; else --resume "
    "starts from the run's last checkpoint, once servers are available"
)
_NON_NAME = re.compile(r"[^A-Za-z0-9.]+")
_HOST = re.compile(r"[A-Za-z0-9._-]+")


def parse_controller(text: str) -> tuple[str, int]:
    """Return the host and the port of a controller; raises UserError.

    >>> parse_controller("10.0.0.1:7400"), parse_controller("10.0.0.1")
    (('10.0.0.1', 7400), ('10.0.0.1', 7400))
    >>> parse_controller("[::1]:7401"), parse_controller("::1")
    (('::1', 7401), ('::1', 7400))
    """
    text = text.strip()
    if is_ipv6(text):
        text = f"[{text}]"
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(PORT)
    is_bracketed = host.startswith("[") and host.endswith("]")
    is_name = bool(_HOST.fullmatch(host)) or (is_bracketed and ":" in host)
    host = host.removeprefix("[").removesuffix("]")
    if not is_name or not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise UserError(f"{text!r} is no controller's address; name HOST:PORT, such as 10.0.0.1:{PORT}")
    return host, int(port)


def controller_name(host: str, port: int) -> str:
    """Return the name of the controller at an address.

    >>> controller_name("10.0.0.1", 7400)
    'controller-10.0.0.1-7400'
    """
    return f"controller-{_NON_NAME.sub('-', host)[-40:]}-{port}"


def addresses_by_name(addresses: Sequence[str]) -> dict[str, str]:
    """Return HOST:PORT of controllers by name; raises UserError for a malformed address.

    >>> addresses_by_name(["10.0.0.1"])
    {'controller-10.0.0.1-7400': '10.0.0.1:7400'}
    """
    found = [parse_controller(each) for each in addresses]
    return {
        controller_name(host, port): f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in found
    }


def controllers_at(addresses: Sequence[str]) -> dict[str, str]:
    """Return the addresses of controllers by name; raises UserError for a malformed address or an unknown
    host."""
    found = [parse_controller(each) for each in addresses]
    numbers: dict[str, str] = {}
    for host, _ in found:
        try:
            ways = socket.getaddrinfo(host, None)
            is_reached_by_name = any(family == socket.AF_INET for family, *_ in ways)
            numbers[host] = host if is_reached_by_name else str(ways[0][4][0])
        except OSError as error:
            raise UserError(
                f"the host {host!r} of a controller is not found ({error.strerror}); name HOST:PORT, with "
                "its address, or a name that this machine knows"
            ) from error
    return {controller_name(host, port): str(Address.of_port(numbers[host], port)) for host, port in found}


class StandaloneCluster:
    """The cluster's servers, as used by one run."""

    def __init__(
        self, messenger: RoutedMessenger, controllers: Mapping[str, str], run: str, note: Path | None = None
    ) -> None:
        """``note``: file with the run's current name in the cluster, and its earlier names until those are
        deleted from the cluster."""
        self.messenger, self.controllers, self.run = messenger, dict(controllers), run
        self._note = note
        self._earlier_runs: list[str] = []
        if note is not None:
            with suppress(FileNotFoundError, MalformedError):
                noted = read_object(note)
                self._earlier_runs = [take(noted, "run", str)]
                before = noted.get("before")
                self._earlier_runs += map(str, before) if isinstance(before, list) else []
            self._write_note()
        self._status_at, self._started_at = float("-inf"), time.monotonic()
        self._unanswered: float | None = None
        """Time of the oldest request to the leader without a reply."""
        self._is_reported = False
        """True if the missing reply was reported."""
        self._is_run_known: bool | None = None
        """True if the leader knows the run; None before it has replied."""
        self._was_run_known = True
        """The last reported value of that."""
        self._new_events = NewEvents()

    def _write_note(self) -> None:
        if self._note is not None:
            noted = {"run": self.run, "before": self._earlier_runs, "controllers": list(self.controllers)}
            replace_file(self._note, json.dumps(noted).encode())

    @property
    def servers(self) -> list[str]:
        """Known primaries of the run's buckets."""
        return list(self.messenger.servers)

    @property
    def counters_request(self) -> CountersRequest:
        """The request for their metrics of the run."""
        return CountersRequest(self.run)

    def request_status(self, now: float) -> None:
        """Request events now and then, and delete what is left of the run's earlier names."""
        if now - self._status_at > (_STATUS_SECONDS if self._unanswered is None else _RETRY_SECONDS):
            self._status_at = now
            self.send_status_request()
            self._delete_earlier_runs()

    def problem_text(self, now: float) -> str:
        """Return a sentence when no controller replies or knows the run, and when one does again; once
        each, and empty otherwise."""
        if self._unanswered is None and self._was_run_known is not (
            is_known := self._is_run_known is not False
        ):
            self._was_run_known, self._is_reported = is_known, False
            return (
                "the cluster knows this run again"
                if is_known
                else f"{self.unknown}, so training waits; {_AGAIN}"
            )
        if self._unanswered is None:
            was_told, self._is_reported = self._is_reported, False
            return "a controller that leads answers again" if was_told else ""
        waited = now - self._unanswered
        if self._is_reported or waited <= _SILENT_SECONDS:
            return ""
        self._is_reported = True
        return (
            f"no controller that leads has answered for {waited:.0f} s, of {', '.join(self.controllers)}: "
            "pushes wait until one does"
        )

    @property
    def unknown(self) -> str:
        """Sentence that the cluster has lost the run; empty if it knows it."""
        if self._is_run_known is not False:
            return ""
        return (
            f"the cluster of {', '.join(self.controllers)} does not know this run any more: its "
            "controllers' state was lost, or the run was deleted"
        )

    def silence_text(self, now: float) -> str:
        """Return a sentence if no controller replies or knows the run; empty otherwise."""
        waited = 0.0 if self._unanswered is None else now - self._unanswered
        if waited > _SILENT_SECONDS:
            return f"no controller that leads has answered for {waited:.0f} s"
        return "the cluster does not know this run any more" if self.unknown else ""

    def send_status_request(self) -> None:
        """Request the status from the leader."""
        self._unanswered = time.monotonic() if self._unanswered is None else self._unanswered
        self.messenger.send(CONTROLLERS, StatusRequest())

    def events_of(self, status: StatusReply) -> list[ClusterEvent]:
        """Return the new events of the run, and of servers since the run began."""
        self._unanswered = None
        is_there = any(each.run == self.run for each in status.runs)
        self._is_run_known = is_there if is_there or self._is_run_known is not None else None
        since = time.monotonic() - self._started_at
        return [
            each
            for each in self._new_events.new(status)
            if (each.run == self.run if each.run else each.seconds < since)
        ]

    def is_server(self, name: str) -> bool:
        """Return False: no server is a process of the run."""
        return False

    def on_ready(self, ready: ServerReady, clients: Iterable[str]) -> None:
        """Do nothing: these servers do not report to the run."""

    def send_addresses(self, client: str) -> None:
        """Do nothing: clients know the controllers from the start."""

    def on_exit(self, name: str, why: str, now: float, *, is_seen: bool = True) -> None:
        """Do nothing: the cluster replaces its own processes."""

    def create(self, request: Create) -> None:
        """Have a controller create buckets; repeat it until `RoutedMessenger.unknown` is empty."""
        self._delete_earlier_runs()
        self.messenger.send(CONTROLLERS, request)
        self.messenger.find_primaries()

    def _delete_earlier_runs(self) -> None:
        for run in self._earlier_runs:
            self.messenger.send(CONTROLLERS, DeleteRunRequest(run))

    def removed(self, run: str) -> None:
        """Record that a controller has deleted a run."""
        if run in self._earlier_runs:
            self._earlier_runs.remove(run)
            self._write_note()

    def close(self) -> None:
        """Delete the run's buckets at its end, if a controller replies in time."""
        delete_run(self.messenger, self.run, _DELETE_SECONDS)


def delete_run(messenger: RoutedMessenger, run: str, seconds: float) -> bool:
    """Delete the buckets of a run; False if no controller confirms it within ``seconds``."""
    deadline, said = time.monotonic() + seconds, float("-inf")
    while (now := time.monotonic()) < deadline:
        if now - said > _RETRY_SECONDS:
            said = now
            messenger.send(CONTROLLERS, DeleteRunRequest(run))
        match messenger.receive(_RETRY_SECONDS):
            case Received(_, RunDeleted(of)) if of == run:
                return True
            case _:
                pass
    return False
