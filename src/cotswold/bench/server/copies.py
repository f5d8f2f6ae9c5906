"""Cost of replication: pushes and pulls with 1 to 5 copies, compared with a server without replication.

Knows: numbers of copies, the bar. Does not know: transport, replication.

All servers of a row are on this machine, and each has a copy of every bucket. So their total processor time
is the cost of a push on any machines. Processor time is compared, because with as many servers as copies a
machine of few cores says nothing about throughput.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from cotswold.bench.effort import Effort
from cotswold.bench.measure import Spread, ratios, rounded
from cotswold.bench.row import COTSWOLD, Comparison, Row, RowKey
from cotswold.bench.server.client import Client
from cotswold.bench.server.push_pull import REPLICA
from cotswold.bench.server.replicated_servers import ReplicatedServers
from cotswold.bench.server.site import SingleHost
from cotswold.bench.server.unreplicated_servers import (
    Model,
    Transport,
    UnreplicatedServers,
    endpoint_on,
    forked,
)
from cotswold.shards.runtime.arithmetic import Array

BAR, BAR_COPIES = 3.3, 3
"""Processor time of a push with three copies, as a multiple of that with one."""
PULLS_BAR = 0.95
"""Pull rate with three copies, as a fraction of that with one; it should be the same."""
TRANSPORT: Transport = "shared memory"
NONE, ONE_COPY_BASELINE = "no copies", "1 copy"
CPU_OF_NONE, CPU_OF_ONE = f"{NONE}: processor time", f"{ONE_COPY_BASELINE}: processor time"
"""References for the processor time of a push."""


@dataclass(frozen=True)
class Copies:
    """A vector in buckets, and numbers of copies."""

    name: str
    model: Model
    counts: Sequence[int] = (1, 2, 3, 4, 5)
    buckets: int = 64
    pushes: int = 20
    """Pushes per round, followed by the same number of pulls."""


@dataclass
class _PushCosts:
    """Per round: processor seconds of all servers per push and per pull, and seconds of each."""

    push_cpu: list[float] = field(default_factory=list)
    pull_cpu: list[float] = field(default_factory=list)
    push: list[float] = field(default_factory=list)
    pull: list[float] = field(default_factory=list)


def measured(what: Copies, effort: Effort) -> list[Row]:
    """A row for each number of copies."""
    vector = np.full(what.model.size, 1e-3, np.float32)
    taken: dict[int, _PushCosts] = {count: _PushCosts() for count in sorted({0, 1, *what.counts})}
    with ExitStack() as held:
        known = {count: _open_client(held, what, count) for count in taken}
        for served, client in known.values():  # compiles kernels and connects
            _round(served, client, vector, 2, _PushCosts())
        for _ in range(effort.rounds.max_rounds):
            for count, (served, client) in known.items():
                _round(served, client, vector, what.pushes, taken[count])
    return [_row(what, count, taken) for count in what.counts]


def _open_client(
    held: ExitStack, what: Copies, count: int
) -> tuple[UnreplicatedServers | ReplicatedServers, Client]:
    if count == 0:
        plain = held.enter_context(UnreplicatedServers(forked(), what.model, [REPLICA], TRANSPORT))
        client = Client(endpoint_on(TRANSPORT, plain.token, REPLICA), 1, plain.addresses, plain.shards)
        held.callback(client.close)
        return plain, client
    site = SingleHost(TRANSPORT)
    kept = held.enter_context(
        ReplicatedServers(forked(), what.model, [REPLICA], site, copies=count, buckets=what.buckets)
    )
    addresses = dict.fromkeys(kept.buckets, "")
    client = Client(site.endpoint(REPLICA), 1, addresses, kept.shards, controllers=kept.controllers)
    held.callback(client.close)
    return kept, client


def _round(
    served: UnreplicatedServers | ReplicatedServers,
    client: Client,
    vector: Array,
    pushes: int,
    taken: _PushCosts,
) -> None:
    for act, seconds, cpu in (
        (lambda: client.push(vector), taken.push, taken.push_cpu),
        (lambda: client.pull(whole=True), taken.pull, taken.pull_cpu),
    ):
        before, began = _cpu(served), time.perf_counter()
        for _ in range(pushes):
            act()
        seconds.append((time.perf_counter() - began) / pushes)
        cpu.append((_cpu(served) - before) / pushes)


def _cpu(served: UnreplicatedServers | ReplicatedServers) -> float:
    return sum(one.cpu_seconds for one in served.counts())


def _row(what: Copies, count: int, taken: dict[int, _PushCosts]) -> Row:
    own, one, none = taken[count], taken[1], taken[0]
    bar, pulls_bar = (BAR, PULLS_BAR) if count == BAR_COPIES else (None, None)
    verdicts = [
        Comparison(CPU_OF_ONE, ratios(own.push_cpu, one.push_cpu), bar, "at most"),
        Comparison(f"{ONE_COPY_BASELINE}: pulls", ratios(one.pull, own.pull), pulls_bar),
        Comparison(CPU_OF_NONE, ratios(own.push_cpu, none.push_cpu), None, "at most"),
    ]
    key = RowKey("copies", what.name, f"{count} copies" if count > 1 else ONE_COPY_BASELINE)
    samples = {COTSWOLD: [1 / each for each in own.push], NONE: [1 / each for each in none.push]}
    figures = {by: Spread.from_samples(rates) for by, rates in samples.items()}
    facts: dict[str, object] = {
        "copies": count,
        "buckets": what.buckets,
        "parameters": what.model.size,
        "servers_cpu_seconds_a_push": rounded(Spread.from_samples(own.push_cpu).median),
        "servers_cpu_seconds_a_pull": rounded(Spread.from_samples(own.pull_cpu).median),
        "pull_seconds": rounded(Spread.from_samples(own.pull).median),
    }
    return Row(key, "pushes/s", figures, samples, "rates", verdicts, facts=facts)
