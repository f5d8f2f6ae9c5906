"""A cluster of parameter servers looked at: by its controllers, and by each of its servers.

Knows: how what both say is put together. Does not know: how it is shown, how a cluster is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.servers.cluster_host import cluster_tokens
from cotswold.errors import UserError

if TYPE_CHECKING:
    from cotswold.replication.client.admin import Operator
    from cotswold.wire import EventSeen, Looked, ServerSeen
    from cotswold.wire.lifecycle import CopySeen, Reported


@dataclass(frozen=True)
class Overview:
    """A cluster, at a moment."""

    looked: Looked
    """As the leader of the controllers sees it."""
    reports: dict[str, Reported]
    """What servers say of themselves, by name; without those that do not answer."""

    @property
    def window_seconds(self) -> float:
        """How old the oldest change is that is on no disk of its server, of those that have one."""
        return max((each.window_seconds for each in self.reports.values()), default=0.0)


@dataclass(frozen=True)
class Explained:
    """One bucket, at a moment."""

    bucket: str
    term: int
    life: int
    primary: str
    secondaries: tuple[str, ...]
    learners: tuple[str, ...]
    copies: dict[str, CopySeen]
    """By server; without those that do not answer."""
    servers: dict[str, ServerSeen]
    """What controllers know of them."""
    wanted: int
    """Copies that it is to have."""
    least: int
    why: str
    """What it waits for; empty for nothing."""
    events: tuple[EventSeen, ...]
    """What has happened to it, the oldest first, as far as the leader of the controllers has seen it."""


def operator(controllers: str | Sequence[str], token: Path | None = None) -> Operator:
    """Whoever operates the cluster with these controllers, which are named with commas, or one by one."""
    from cotswold.replication.client.admin import Operator
    from cotswold.ui.progress import say

    named = controllers.split(",") if isinstance(controllers, str) else controllers
    places = [each.strip() for each in named if each.strip()]
    if not places:
        raise UserError("no controller is named; give HOST:PORT of each, with commas")
    return Operator(places, cluster_tokens(token), say=say)


def overview(of: Operator) -> Overview:
    """The cluster as it is now; raises MachineError where no controller answers."""
    looked = of.look()
    living = {each.name: each.address for each in looked.servers if each.state in ("living", "draining")}
    return Overview(looked, of.reports(living))


def explained(of: Operator, bucket: str) -> Explained:
    """A bucket as it is now; raises UserError for no such, MachineError where no controller answers."""
    found = of.bucket(bucket)
    group = found.group
    looked = of.look(group.bucket)
    return Explained(
        *(group.bucket, group.term, group.life, group.primary, group.secondaries, group.learners),
        copies=dict(found.copies),
        servers={each.name: each for each in looked.servers if each.name in group.everybody},
        wanted=looked.copies,
        least=looked.least,
        why=next((each.why for each in looked.short if each.bucket == group.bucket), ""),
        events=looked.events,
    )


def in_json(found: Overview | Explained) -> dict[str, object]:
    """All of it, as plain values: an address is HOST:PORT, or the path of a socket."""

    def plain(value: object) -> object:
        if isinstance(value, dict):
            return {key: _place(each) if key == "address" else plain(each) for key, each in value.items()}
        return [plain(each) for each in value] if isinstance(value, list | tuple) else value

    return {name: plain(value) for name, value in asdict(found).items()}


def _place(address: str) -> str:
    from cotswold.transport.address import Address

    if not Address.is_one(address):
        return address
    known = Address.parsed(address)
    return (known.tcp or known.unix or "").removeprefix("tcp://").removeprefix("ipc://")


def run_meant(of: Operator, run: str) -> str:
    """The run whose name begins so; raises UserError where none does, or several do."""
    names = [each.run for each in of.look().runs]
    fitting = [each for each in names if each.startswith(run)]
    if len(fitting) != 1 or not run:
        raise UserError(f"{run!r} names no run of the cluster; it has {', '.join(names) or 'none'}")
    return fitting[0]
