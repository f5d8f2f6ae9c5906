"""Views of a cluster of parameter servers, from its controllers and its servers.

Knows: how the answers of both are combined. Does not know: display, requests to a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.servers.cluster_host import cluster_tokens
from cotswold.errors import UserError

if TYPE_CHECKING:
    from cotswold.replication.client.admin import AdminClient
    from cotswold.wire import ClusterEvent, ReplicaServerStatus, StatusReply
    from cotswold.wire.lifecycle import BucketReplicaStatus, ServerReport


@dataclass(frozen=True)
class Overview:
    """The state of a cluster at one moment."""

    status: StatusReply
    """The cluster as seen by the leader of the controllers."""
    reports: dict[str, ServerReport]
    """Reports of servers, by name; servers that do not answer are missing."""

    @property
    def window_seconds(self) -> float:
        """Age in seconds of the oldest change not yet on disk, over servers with a disk."""
        return max((each.window_seconds for each in self.reports.values()), default=0.0)


@dataclass(frozen=True)
class Explained:
    """The state of one bucket at one moment."""

    bucket: str
    term: int
    incarnation: int
    primary: str
    secondaries: tuple[str, ...]
    learners: tuple[str, ...]
    copies: dict[str, BucketReplicaStatus]
    """Copies by server; servers that do not answer are missing."""
    servers: dict[str, ReplicaServerStatus]
    """The controllers' view of the servers of this bucket."""
    wanted_copies: int
    """Number of copies that the bucket should have."""
    min_copies: int
    why: str
    """Reason why the bucket waits; empty if it does not wait."""
    events: tuple[ClusterEvent, ...]
    """Events of the bucket, oldest first, as seen by the leader of the controllers."""


def operator(controllers: str | Sequence[str], token: Path | None = None) -> AdminClient:
    """Return an operator client for the cluster with these controllers, a list or comma-separated text."""
    from cotswold.replication.client.admin import AdminClient
    from cotswold.ui.terminal import write_message

    named = controllers.split(",") if isinstance(controllers, str) else controllers
    places = [each.strip() for each in named if each.strip()]
    if not places:
        raise UserError("controllers is empty; give HOST:PORT of each, separated by commas")
    return AdminClient(places, cluster_tokens(token), report=write_message)


def overview(of: AdminClient) -> Overview:
    """Return the current state of the cluster. Raises MachineError if no controller answers."""
    looked = of.status()
    living = {each.name: each.address for each in looked.servers if each.state in ("living", "draining")}
    return Overview(looked, of.reports(living))


def explained(of: AdminClient, bucket: str) -> Explained:
    """Return the current state of a bucket.

    Raises UserError for an unknown bucket and MachineError if no controller answers.
    """
    found = of.bucket(bucket)
    group = found.group
    looked = of.status(group.bucket)
    return Explained(
        *(group.bucket, group.term, group.incarnation, group.primary, group.secondaries, group.learners),
        copies=dict(found.copies),
        servers={each.name: each for each in looked.servers if each.name in group.all_servers},
        wanted_copies=looked.replication_factor,
        min_copies=looked.least,
        why=next((each.why for each in looked.short if each.bucket == group.bucket), ""),
        events=looked.events,
    )


def to_plain_values(found: Overview | Explained) -> dict[str, object]:
    """Return the state as plain values; an address is HOST:PORT, or the path of a socket."""

    def plain(value: object) -> object:
        if isinstance(value, dict):
            return {
                key: _describe_address(each) if key == "address" else plain(each)
                for key, each in value.items()
            }
        return [plain(each) for each in value] if isinstance(value, list | tuple) else value

    return {name: plain(value) for name, value in asdict(found).items()}


def _describe_address(address: str) -> str:
    from cotswold.transport.address import Address

    if not Address.is_valid(address):
        return address
    known = Address.parsed(address)
    return (known.tcp or known.unix or "").removeprefix("tcp://").removeprefix("ipc://")


def run_meant(of: AdminClient, run: str) -> str:
    """Return the run whose name begins with ``run``. Raises UserError unless exactly one does."""
    names = [each.run for each in of.status().runs]
    fitting = [each for each in names if each.startswith(run)]
    if len(fitting) != 1 or not run:
        raise UserError(
            f"{run!r} does not select one run of the cluster; it has {', '.join(names) or 'none'}"
        )
    return fitting[0]
