"""What copies cost where links are the bound: pushes and pulls, each server on a host with a slow link.

Knows: hosts, ways, the bars, the clients' processes. Does not know: how messages travel, how copies are kept.

One server is the primary of all there is, as for each bucket one is. Several clients, each on a host with a
link of its own, push and then pull as fast as they are answered, so that the link of the primary is what
bounds them. In a star it carries what is different once for each other copy, in a chain once. With one copy
it carries pushes alone.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cotswold.bench.effort import Effort
from cotswold.bench.measure import Spread, ratios
from cotswold.bench.row import OURS, Comparison, Row, RowKey
from cotswold.bench.server.client import Client
from cotswold.bench.server.crowd import name_of
from cotswold.bench.server.kept import CONTROLLER, Kept
from cotswold.bench.server.served import Model, forked
from cotswold.bench.server.site import DATA, LinkedHosts
from cotswold.cluster.transport import Endpoint
from cotswold.errors import MachineError, UserError
from cotswold.host import Process, keep_freed_bytes, token_of
from cotswold.server.copies.copying import Way
from cotswold.server.messages import Shard
from cotswold.testing.hosts import Hosts, why_not

ONE, STAR, CHAIN = "1 copy", "star", "chain"
PUSHES, PULLS = "pushes", "pulls"
BARS: Mapping[str, float] = {STAR: 0.45, CHAIN: 0.9}
"""Pushes a second, beside one copy's."""
PULL_BAR = 0.9
"""Pulls a second, of which a bucket's primary answers all, whoever else has a copy."""
_COPIES = 3
_WAIT_SECONDS, _LATEST_SECONDS = 0.01, 60.0


@dataclass(frozen=True)
class Links:
    """A vector of one bucket, clients, and for how long they push, and pull, in each round."""

    megabits: int
    model: Model
    clients: int = 6
    seconds: float = 4.0

    @property
    def name(self) -> str:
        """As tables have it."""
        return f"links of {self.megabits} Mb/s"


@dataclass
class _Group:
    """Servers that keep so many copies by a way, and the clients' processes, which share a folder with us."""

    kept: Kept
    folder: Path
    processes: list[Process] = field(default_factory=list)
    rounds: int = 0

    def measure(self) -> dict[str, float]:
        """Pushes and pulls a second of all clients together, in a round."""
        number, self.rounds = self.rounds, self.rounds + 1
        (self.folder / f"begin-{number}").touch()
        files = [self.folder / f"{each.name}-{number}.json" for each in self.processes]
        deadline = time.monotonic() + _LATEST_SECONDS
        while not all(each.exists() for each in files):
            if time.monotonic() > deadline or any(each.code() is not None for each in self.processes):
                raise MachineError("clients on slow links have said nothing of a round")
            time.sleep(_WAIT_SECONDS)
        found = [json.loads(each.read_text()) for each in files]
        return {verb: sum(each[verb] for each in found) for verb in (PUSHES, PULLS)}


def measured(what: Links, effort: Effort) -> list[Row]:
    """A row for each verb and way; raises UserError where hosts cannot be made."""
    why = why_not()
    if why is not None:
        raise UserError(f"slow links are those of hosts that are made on this machine: {why}")
    samples: dict[str, dict[str, list[float]]] = {by: {PUSHES: [], PULLS: []} for by in (ONE, STAR, CHAIN)}
    with ExitStack() as held:
        count = 2 + 2 * _COPIES + what.clients
        hosts = held.enter_context(Hosts(count, f"{what.megabits}mbit", interfaces=2))
        groups = {
            ONE: _opened(held, what, hosts, 1, 1, "star"),
            STAR: _opened(held, what, hosts, 2, _COPIES, "star"),
            CHAIN: _opened(held, what, hosts, 2 + _COPIES, _COPIES, "chain"),
        }
        for each in groups.values():  # connections made, kernels compiled
            each.measure()
        for _ in range(effort.rounds.most):
            for by, group in groups.items():
                for verb, rate in group.measure().items():
                    samples[by][verb].append(rate)
    return [_row(what, verb, way, samples) for verb in (PUSHES, PULLS) for way in (STAR, CHAIN)]


def _opened(held: ExitStack, what: Links, hosts: Hosts, first: int, copies: int, way: Way) -> _Group:
    """Servers on hosts from the ``first`` on, and a client on each of the last hosts."""
    site = LinkedHosts(hosts, first)
    names = [name_of(number) for number in range(what.clients)]
    kept = held.enter_context(
        Kept(forked(), what.model, names, "TCP", copies=copies, buckets=1, way=way, site=site)
    )
    folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="cotswold-")))
    group = _Group(kept, folder)
    for number, name in enumerate(names):
        host = hosts.count - what.clients + number
        told = {
            "name": name,
            "session": number + 1,
            "address": hosts.address(host, DATA),
            "controller": kept.controllers[CONTROLLER],
            "shards": [astuple(one) for one in kept.shards],
            "folder": str(folder),
            "seconds": what.seconds,
        }
        call = site.on(host, kept.token, name, f"{__name__}:push_and_pull", told)
        process = forked().start(call)
        held.callback(process.end)
        group.processes.append(process)
    return group


def _row(what: Links, verb: str, way: str, samples: Mapping[str, Mapping[str, Sequence[float]]]) -> Row:
    own = {OURS: samples[way][verb], ONE: samples[ONE][verb]}
    bar = BARS[way] if verb == PUSHES else PULL_BAR
    verdict = Comparison(ONE, ratios(own[OURS], own[ONE]), bar)
    facts: dict[str, object] = {
        "copies": _COPIES,
        "clients": what.clients,
        "parameters": what.model.size,
        "megabits": what.megabits,
    }
    figures = {by: Spread.of(rates) for by, rates in own.items()}
    key = RowKey("links", what.name, f"{verb}, {_COPIES} copies by {way}")
    return Row(key, f"{verb}/s", figures, own, "rates", [verdict], facts=facts)


# --- in a client's process ---


def push_and_pull(
    *,
    name: str,
    session: int,
    address: str,
    controller: str,
    shards: Sequence[Sequence[Any]],
    folder: str,
    seconds: float,
) -> int:
    """The life of a client: whenever a round begins it pushes for so long, then pulls, and says how often."""
    keep_freed_bytes()
    token = token_of(os.environ)
    assert token is not None, "it was given to the process"
    own, where = [Shard(*one) for one in shards], Path(folder)
    endpoint = Endpoint(token, name, host=address, encrypt=False, apart=True)
    buckets = dict.fromkeys((one.server for one in own), "")
    client = Client(
        *("TCP", token, name, session, buckets, own),
        controllers={CONTROLLER: controller},
        endpoint=endpoint,
    )
    gradient = np.full(max(one.stop for one in own), 1e-3, np.float32)
    number = 0
    while True:
        while not (where / f"begin-{number}").exists():
            client.post.receive(_WAIT_SECONDS)
        said = {
            PUSHES: _rate(lambda: client.push(gradient), seconds),
            PULLS: _rate(lambda: client.pull(whole=True), seconds),
        }
        beside = where / f"{name}-{number}.part"
        beside.write_text(json.dumps(said))
        beside.rename(where / f"{name}-{number}.json")
        number += 1


def _rate(act: Any, seconds: float) -> float:
    """How often it is done a second."""
    begun, times = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        act()
        times += 1
    return times / (time.perf_counter() - begun)
