"""Cost of replication where links are the bottleneck: pushes and pulls, each server on a host with a slow
link.

Knows: hosts, topologies, the bars, the client processes. Does not know: transport, replication.

One server is the primary of all buckets. Several clients, each on a host with a separate link, push or pull
as fast as answers arrive, so that the primary's link is the bottleneck. In a star, that link carries each
change once per other copy, in a chain once. With one copy it carries pushes only.

For each number of copies, servers in a star, in a chain and with one copy run at once on the same hosts, and
take turns. Idle servers send little more than heartbeats.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cotswold.bench.effort import Effort
from cotswold.bench.measure import Spread, ratios
from cotswold.bench.row import COTSWOLD, Comparison, Row, RowKey
from cotswold.bench.server.client import Client
from cotswold.bench.server.copies import BAR_COPIES, ONE_COPY_BASELINE, PULLS_BAR
from cotswold.bench.server.processes import name_of
from cotswold.bench.server.replicated_servers import ReplicatedServers
from cotswold.bench.server.site import DATA, LinkedHosts
from cotswold.bench.server.unreplicated_servers import Model, forked
from cotswold.errors import MachineError
from cotswold.host import Process, Token, keep_freed_memory, token_of
from cotswold.replication.replica.settings import Topology
from cotswold.testing.hosts import Hosts, why_not
from cotswold.transport import Endpoint
from cotswold.wire import Shard

PUSHES, PULLS = "pushes", "pulls"
BARS: Mapping[Topology, float] = {"star": 0.45, "chain": 0.9}
"""Push rate with three copies, as a fraction of that with one."""
CONGESTION = "cubic"
"""Linux's default, independent of this machine's setting. BBR mistakes a link without delay for one with
no capacity, and keeps it half empty if acknowledgements are late, as with forwarded traffic."""
_WAIT_SECONDS, _LATEST_SECONDS = 0.01, 60.0
_WARM_SECONDS = 0.2


@dataclass(frozen=True)
class Links:
    """A vector in buckets, clients, and seconds of pushes and pulls."""

    megabits: int
    model: Model
    counts: Sequence[int] = (1, 2, 3, 4, 5)
    """Numbers of copies."""
    buckets: int = 16
    clients: int = 6
    push_seconds: float = 4.0
    """Seconds per round; long enough that the start, with empty links and TCP's slow start, counts for
    little."""
    pull_seconds: float = 1.0

    def seconds(self, verb: str) -> float:
        """Seconds per round of pushes or pulls."""
        return self.push_seconds if verb == PUSHES else self.pull_seconds

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"links of {self.megabits} Mb/s"


@dataclass(frozen=True)
class _Group:
    """A number of copies in a topology; with one copy there is no topology."""

    copies: int
    topology: Topology

    @property
    def name(self) -> str:
        return ONE_COPY_BASELINE if self.copies == 1 else f"{self.copies} copies by {self.topology}"


_Rates = dict[_Group, dict[str, list[float]]]
"""Operations per second of all clients in each round, by verb."""


def measured(what: Links, effort: Effort) -> list[Row]:
    """A row for each verb, number of copies and topology; a single row with the reason if this machine
    cannot create hosts."""
    why = why_not()
    if why is not None:
        return [Row(RowKey("links", what.name, "not measured"), f"{PUSHES}/s", {}, {}, "rates", note=why)]
    return [row for count in sorted({*what.counts}) for row in _rows_with_one_copy(what, count, effort)]


def _rows_with_one_copy(what: Links, copies: int, effort: Effort) -> list[Row]:
    """The rows of one number of copies, which takes turns with one copy."""
    one = _Group(1, "star")
    wanted = [_Group(copies, way) for way in BARS] if copies > 1 else [one]
    groups = list(dict.fromkeys([one, *wanted]))
    rates: _Rates = {group: {PUSHES: [], PULLS: []} for group in groups}
    with ExitStack() as held:
        hosts = held.enter_context(Hosts(1 + copies + what.clients, f"{what.megabits}mbit", interfaces=2))
        hosts.control_congestion(CONGESTION)
        crowd = _ClientProcesses.start(held, what, hosts, groups)
        for verb in (PUSHES, PULLS):  # compiles kernels and connects
            for group in groups:
                crowd.rate(group, verb, _WARM_SECONDS)
        for _ in range(effort.rounds.max_rounds):
            for verb in (PUSHES, PULLS):
                for group in groups:
                    rates[group][verb].append(crowd.rate(group, verb, what.seconds(verb)))
    return [
        _row(what, verb, group, rates[group][verb], rates[one][verb])
        for verb in (PUSHES, PULLS)
        for group in wanted
    ]


def _row(what: Links, verb: str, group: _Group, own: Sequence[float], one: Sequence[float]) -> Row:
    bar = BARS[group.topology] if verb == PUSHES else PULLS_BAR
    samples = {COTSWOLD: own, ONE_COPY_BASELINE: one}
    facts: dict[str, object] = {
        "copies": group.copies,
        "way": group.topology,
        "verb": verb,
        "buckets": what.buckets,
        "clients": what.clients,
        "parameters": what.model.size,
        "megabits": what.megabits,
    }
    return Row(
        RowKey("links", what.name, f"{verb}, {group.name}"),
        f"{verb}/s",
        {by: Spread.from_samples(each) for by, each in samples.items()},
        samples,
        "rates",
        [Comparison(ONE_COPY_BASELINE, ratios(own, one), bar if group.copies == BAR_COPIES else None)],
        facts=facts,
    )


# --- the client processes, which share a folder with this process ---


@dataclass
class _ClientProcesses:
    """All client processes; each is a client of all groups."""

    folder: Path
    processes: list[Process] = field(default_factory=list)
    turns: int = 0

    @classmethod
    def start(cls, held: ExitStack, what: Links, hosts: Hosts, groups: Sequence[_Group]) -> _ClientProcesses:
        """Start servers of all groups on hosts from 1 on, and a client on each of the last hosts."""
        crowd = cls(Path(held.enter_context(tempfile.TemporaryDirectory(prefix="cotswold-"))))
        token, names = Token.new(), [name_of(number) for number in range(what.clients)]
        served: dict[str, dict[str, object]] = {}
        for group in groups:
            kept = held.enter_context(
                ReplicatedServers(
                    *(forked(), what.model, names, LinkedHosts(hosts, token)),
                    copies=group.copies,
                    buckets=what.buckets,
                    way=group.topology,
                    is_led_by_one=True,
                )
            )
            served[group.name] = {
                "controllers": kept.controllers,
                "shards": [astuple(one) for one in kept.shards],
            }
        for number, name in enumerate(names):
            host = hosts.count - what.clients + number
            told = {
                "name": name,
                "session": number + 1,
                "address": hosts.address(host, DATA),
                "served": served,
                "folder": str(crowd.folder),
            }
            process = forked().start(
                LinkedHosts(hosts, token).call_on(host, name, f"{__name__}:run_client", told)
            )
            held.callback(process.end)
            crowd.processes.append(process)
        return crowd

    def rate(self, group: _Group, verb: str, seconds: float) -> float:
        """Operations per second of all clients together during ``seconds``; raise MachineError if a client
        exits."""
        turn, self.turns = self.turns, self.turns + 1
        _write_atomically(self.folder / f"turn-{turn}", [group.name, verb, seconds])
        files = [self.folder / f"{process.name}-{turn}" for process in self.processes]
        deadline = time.monotonic() + seconds + _LATEST_SECONDS
        while not all(each.exists() for each in files):
            if time.monotonic() > deadline or any(each.code() is not None for each in self.processes):
                raise MachineError(f"clients on slow links have not reported {verb} of {group.name}")
            time.sleep(_WAIT_SECONDS)
        return float(sum(json.loads(each.read_text()) for each in files))


def run_client(*, name: str, session: int, address: str, served: Mapping[str, Any], folder: str) -> int:
    """Run a client: push to a group of servers, or pull, at each turn, and report the rate."""
    keep_freed_memory()
    token = token_of(os.environ)
    assert token is not None, "the parent process sets it"
    acts: dict[tuple[str, str], Callable[[], object]] = {}
    for group, told in served.items():
        shards = [Shard(*one) for one in told["shards"]]
        endpoint = Endpoint(token, name, host=address, encrypt=False, apart=True)
        buckets = dict.fromkeys((one.server for one in shards), "")
        client = Client(endpoint, session, buckets, shards, controllers=told["controllers"])
        gradient = np.full(max(one.stop for one in shards), 1e-3, np.float32)
        acts[group, PUSHES] = partial(client.push, gradient)
        acts[group, PULLS] = partial(client.pull, whole=True)
    turn = 0
    while True:
        while not (Path(folder) / f"turn-{turn}").exists():
            time.sleep(_WAIT_SECONDS)
        group, verb, seconds = json.loads((Path(folder) / f"turn-{turn}").read_text())
        _write_atomically(Path(folder) / f"{name}-{turn}", _rate(acts[group, verb], seconds))
        turn += 1


def _rate(act: Callable[[], object], seconds: float) -> float:
    """Operations per second."""
    begun, times = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        act()
        times += 1
    return times / (time.perf_counter() - begun)


def _write_atomically(file: Path, words: object) -> None:
    """Write a file atomically, so that readers see it complete."""
    beside = file.with_name(f"{file.name}.part")
    beside.write_text(json.dumps(words))
    beside.rename(file)
