"""Client of a cluster's operators: status, drains, deletion and export.

Knows: requests to controllers and servers, and their time limits. Does not know: the decisions, the
presentation.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Self, TypeVar

from cotswold.errors import MachineError, UserError
from cotswold.host import Token
from cotswold.host.keyring import KeyringFile
from cotswold.processes.endpoint_settings import EndpointSettings
from cotswold.replication.client.endpoints import ClusterEndpoints
from cotswold.replication.client.routed_messenger import RoutedMessenger
from cotswold.replication.client.standalone_cluster import addresses_by_name, controllers_at
from cotswold.replication.client.unreachable import no_leader_text, unreachable_text
from cotswold.replication.replica.saved_bucket import SavedBucket, disk_of, is_restored, restored_on
from cotswold.transport import Endpoint
from cotswold.transport.token_rotation import TokenRotation
from cotswold.wire import (
    CONTROLLERS,
    DeleteRunRequest,
    DiskStateReply,
    Drain,
    DrainStatus,
    Group,
    LookupReply,
    LookupRequest,
    Message,
    Prepare,
    RunDeleted,
    RunDescription,
    RunDescriptionRequest,
    StatusReply,
    StatusRequest,
    Undrain,
    Undrained,
)
from cotswold.wire.lifecycle import BucketReplicaStatus, ExportRequest, ServerReport, ServerReportRequest
from cotswold.wire.messenger import AnyMessage, Received
from cotswold.wire.names import run_of

_RETRY_SECONDS = 0.3
_EXPECTED_SECONDS = 1.0
_REPORT_SECONDS = 1.0
_RUN = "operator"
_PRESENT = "living", "draining"
"""States of servers that can be drained."""
_NAMED = 8
T = TypeVar("T")


@dataclass(frozen=True)
class BucketOverview:
    """A bucket: its group and the state of each replica."""

    group: Group
    copies: Mapping[str, BucketReplicaStatus]
    """State by server, of those that replied."""


class AdminClient:
    """Client of an operator; use it in a ``with`` statement, or call `close`."""

    def __init__(
        self,
        controllers: Sequence[str],
        tokens: Token | KeyringFile,
        *,
        wait_seconds: float = 5.0,
        report: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """``controllers``: HOST or HOST:PORT of each; ``report`` is called with a sentence if a reply takes
        longer than usual. Raises UserError without controllers."""
        name = f"operator-{secrets.token_hex(4)}"
        self._controller_addresses, self._wait_seconds, self._report = (
            tuple(controllers),
            wait_seconds,
            report,
        )
        self._messenger = RoutedMessenger(
            Endpoint(TokenRotation(tokens).ring, name),
            controllers_at(controllers),
            ClusterEndpoints(name, _RUN, EndpointSettings(), tokens),
        )
        self._server_addresses: dict[str, str] = {}
        self._groups: dict[str, Group] = {}
        """The last known groups."""
        self._numbers = count(1)
        """Numbers of requests."""

    def status(self, bucket: str = "") -> StatusReply:
        """Return the leader's status, with the events of one bucket if one is named; raises MachineError
        if no leader replies."""
        number = next(self._numbers)
        return self._request(
            StatusRequest(bucket, number), StatusReply, lambda looked: looked.number == number
        )

    def groups(self) -> dict[str, Group]:
        """Return the group of each bucket; raises MachineError if no controller replies."""
        number = next(self._numbers)
        found = self._request(
            LookupRequest((), number=number), LookupReply, lambda found: found.number == number
        )
        self._server_addresses = {each.name: each.address for each in self.status().servers}
        self._groups = {each.bucket: each for each in found.groups}
        return dict(self._groups)

    def description(self, run: str) -> str:
        """Return the description of a run; raises UserError for an unknown run."""
        number = next(self._numbers)
        found = self._request(
            RunDescriptionRequest(run, number), RunDescription, lambda found: found.number == number
        )
        if not found.description:
            raise UserError(f"the cluster has no run {run}; `cotswold cluster status` lists its runs")
        return found.description

    def reports(self, servers: Mapping[str, str], bucket: str = "") -> dict[str, ServerReport]:
        """Return the status of servers, given with their addresses, by name; without those that do not
        reply."""
        found: dict[str, ServerReport] = {}

        def hear(message: AnyMessage) -> None:
            if isinstance(message, ServerReport) and message.server in servers:
                found[message.server] = message

        self._request_from_servers(
            servers, lambda name: [ServerReportRequest(bucket)], hear, lambda: found.keys() >= servers.keys()
        )
        return found

    def bucket(self, name: str) -> BucketOverview:
        """Return one bucket; a unique short form of its name suffices. Raises UserError for an unknown
        bucket."""
        groups = self.groups()
        if not groups:
            raise UserError(f"no bucket {name!r}: the cluster has no run")
        fitting = [each for each in groups if each == name or _is_meant(name, each)]
        if len(fitting) != 1:
            found = sorted(fitting or groups)
            some = ", ".join(found[:_NAMED]) + (
                f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            )
            if not fitting:
                raise UserError(f"no bucket {name!r}; the cluster has {some}")
            raise UserError(
                f"{name!r} may be any of {len(fitting)} buckets; name one as RUN/NUMBER, where the first "
                f"letters of RUN suffice: {some}"
            )
        group = groups[fitting[0]]
        servers = {each: self._server_addresses.get(each, "") for each in group.all_servers}
        reports = self.reports(servers, group.bucket)
        copies = {name: copy for name, each in reports.items() for copy in each.copies}
        return BucketOverview(group, copies)

    def drain(self, server: str, seconds: float) -> Iterator[DrainStatus]:
        """Drain a server; yield the progress until no replicas are left or the time is over. Raises
        UserError for an unknown server."""
        meant = self._meant(server)
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            found = self._request(Drain(meant, left), DrainStatus, lambda said: said.server == meant)
            yield found
            if not found.left or left <= 0:
                return
            time.sleep(min(_RETRY_SECONDS, left))

    def undrain(self, server: str) -> str:
        """End the drain of a server and return its full name. Raises UserError for an unknown server."""
        meant = self._meant(server, (*_PRESENT, "drained"))
        self._request(Undrain(meant), Undrained, lambda said: said.server == meant)
        return meant

    def declare_lost(self, server: str) -> str:
        """Declare a silent server lost for good and return its full name. Raises UserError for an
        available server, a restored disk, or if no silent server has the name."""
        states = {each.name: each.state for each in self.status().servers}
        disk, others = disk_of(server), {disk_of(each) for each in states if not is_restored(each)}
        if restored_on(disk) in states and (is_restored(server) or disk not in others):
            raise UserError(
                f"{restored_on(disk)} is not a server but the disk {disk}, from which the cluster starts: "
                "start its host. If it is lost, another disk with the same data is used after a minute. "
                "If there is none, restore again into an empty folder, or delete each run "
                "that waits: `cotswold cluster remove RUN`"
            )
        there = _names_on_disk(server, [name for name, state in states.items() if state in _PRESENT])
        if there and not _names_on_disk(server, [name for name, state in states.items() if state == "gone"]):
            raise UserError(
                f"{there[0]} is available; only a silent server can be declared lost; drain it without --lost"
            )
        meant = self._meant(server, ("gone",))
        self._request(Drain(meant, 0.0, is_lost=True), DrainStatus, lambda said: said.server == meant)
        return meant

    def _meant(self, server: str, states: Collection[str] = _PRESENT) -> str:
        """Return the server in one of these states with this name; the number after the point may be
        omitted."""
        seen = {each.name: each.state for each in self.status().servers}
        names = [name for name, state in seen.items() if state in states]
        fitting = _names_on_disk(server, names)
        if len(fitting) > 1:
            raise UserError(f"{server!r} matches {' and '.join(fitting)}; give the full name of one")
        if fitting:
            return fitting[0]
        for name in _names_on_disk(server, seen):
            if seen[name] == "drained":
                raise UserError(
                    f"{name} is already drained and its process has stopped; `cotswold cluster drain {name} "
                    "--back` brings it back"
                )
            raise UserError(
                f"{name} has already exited"
                if seen[name] == "ended"
                else f"{name} is silent: resume it, or, if it never comes back, declare it lost: `cotswold "
                f"cluster drain {name} --lost`"
            )
        raise UserError(f"the cluster has no server {server!r}; it has {', '.join(names) or 'none'}")

    def remove(self, run: str) -> None:
        """Delete a run from the cluster."""
        self._request(DeleteRunRequest(run), RunDeleted, lambda said: said.run == run)

    def export(self, buckets: Sequence[str]) -> Iterator[SavedBucket]:
        """Yield each of these buckets as its primary has it now, while runs continue. Raises MachineError
        if the primary of one does not reply."""
        self.groups()
        for bucket in buckets:
            yield self._exported(bucket)

    def close(self) -> None:
        """Disconnect."""
        self._messenger.endpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- requests ---

    def _request(self, question: Message, kind: type[T], is_meant: Callable[[T], bool]) -> T:
        """Return the leader's reply. The request is repeated and answered each time, so replies to earlier
        requests may come late; ``is_meant`` recognises the right one."""
        deadline, said = time.monotonic() + self._wait_seconds, float("-inf")
        is_told = self._wait_seconds <= _EXPECTED_SECONDS
        while (now := time.monotonic()) < deadline:
            if not is_told and now > deadline - self._wait_seconds + _EXPECTED_SECONDS:
                is_told = True
                more = f"{self._wait_seconds - _EXPECTED_SECONDS:g} s more"
                self._report(
                    f"waiting for a controller at {', '.join(self._controller_addresses)}, for {more}"
                )
            if now - said > _RETRY_SECONDS:
                said = now
                self._messenger.send(CONTROLLERS, question)
            match self._messenger.receive(_RETRY_SECONDS):
                case Received(_, message) if isinstance(message, kind) and is_meant(message):
                    return message
                case _:
                    pass
        places, lost = addresses_by_name(self._controller_addresses), self._messenger.calls.lost
        if following := self._messenger.calls.followers:
            why = no_leader_text(places, lost, following)
            raise MachineError(f"no controller that leads has answered for {self._wait_seconds:g} s: {why}")
        why = unreachable_text(places, lost)
        raise MachineError(f"no controller has answered for {self._wait_seconds:g} s: {why}")

    def _request_from_servers(
        self,
        servers: Mapping[str, str],
        questions: Callable[[str], Sequence[AnyMessage]],
        handler: Callable[[AnyMessage], None],
        is_finished: Callable[[], bool],
    ) -> None:
        self._messenger.call({name: address for name, address in servers.items() if address})
        for name in servers:
            for each in questions(name):
                self._messenger.send(name, each)
        deadline = time.monotonic() + _REPORT_SECONDS
        while not is_finished() and (left := deadline - time.monotonic()) > 0:
            match self._messenger.receive(left):
                case Received(_, message):
                    handler(message)
                case _:
                    pass

    def _exported(self, bucket: str) -> SavedBucket:
        deadline, heard = time.monotonic() + self._wait_seconds, BucketExport(bucket)
        while bucket in self._groups:
            primary = self._groups[bucket].primary
            servers = {primary: self._server_addresses.get(primary, "")}
            self._request_from_servers(
                servers, lambda name: [ExportRequest(bucket)], heard.on_message, heard.is_received
            )
            if (saved := heard.bucket()) is not None:
                return saved
            if time.monotonic() > deadline:
                raise MachineError(
                    f"no primary of {bucket} has answered for {self._wait_seconds:g} s; try again"
                )
            self.groups()  # another server may be its primary
        raise MachineError(f"bucket {bucket} no longer exists; perhaps its run has ended")


class BucketExport:
    """Assembles a bucket from two messages of its primary."""

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket
        self._reply: DiskStateReply | None = None
        self._prepare: Prepare | None = None

    def on_message(self, message: AnyMessage) -> None:
        """Process a message."""
        if isinstance(message, DiskStateReply) and message.bucket == self._bucket:
            self._reply = message
        elif isinstance(message, Prepare) and message.bucket == self._bucket:
            self._prepare = message

    def is_received(self) -> bool:
        """True if both messages have arrived and belong together: those of an earlier request may come
        late."""
        found, prepare = self._reply, self._prepare
        return (
            found is not None
            and prepare is not None
            and (found.term, found.index) == (prepare.term, prepare.index)
        )

    def bucket(self) -> SavedBucket | None:
        """Return the bucket; None before both messages have arrived."""
        found, prepare = self._reply, self._prepare
        if not self.is_received() or found is None or prepare is None or prepare.change is None:
            return None
        keys = [(name, shard) for name in prepare.names for shard in prepare.change.shards]
        numbers = dict(zip(keys, prepare.buffers, strict=True))
        kept = prepare.change, prepare.names, numbers
        return SavedBucket(found.bucket, found.incarnation, found.term, found.index, *kept)


def _is_meant(text: str, bucket: str) -> bool:
    """True if the text is a short form of the bucket's name: first letters of the run, and the number.

    >>> _is_meant("c83a/16", "c83a0b833eac6e20/0016"), _is_meant("16", "c83a0b833eac6e20/0016")
    (True, True)
    """
    run, _, number = text.rpartition("/")
    own = bucket.rpartition("/")[2]
    return number.isdecimal() and int(number) == int(own) and run_of(bucket).startswith(run)


def _names_on_disk(server: str, names: Iterable[str]) -> list[str]:
    """Return the names that are equal to ``server``, or else those equal up to the number after the point."""
    known = list(names)
    return [each for each in known if each == server] or [
        each for each in known if each.rpartition(".")[0] == server
    ]
