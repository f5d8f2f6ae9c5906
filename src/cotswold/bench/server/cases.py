"""The measurements of `bench server`, in groups.

Knows: the sizes of each measurement. Does not know: the method of any, processes.
"""

from __future__ import annotations

from typing import Any

from cotswold.bench.case import Case
from cotswold.bench.server import (
    copies,
    factors,
    failover,
    links,
    push_pull,
    queue_drain,
    replicas,
    update_application,
)
from cotswold.bench.server.copies import TRANSPORT as COPIED
from cotswold.bench.server.copies import Copies
from cotswold.bench.server.factors import Factors
from cotswold.bench.server.failover import KILLED, STOPPED, Failover
from cotswold.bench.server.links import Links
from cotswold.bench.server.push_pull import exchanges
from cotswold.bench.server.queue_drain import Draining
from cotswold.bench.server.replicas import ReplicaCounts
from cotswold.bench.server.unreplicated_servers import TRANSPORTS, Transport
from cotswold.bench.server.update_application import UpdateCase
from cotswold.optim.server_rules import Adagrad, AddUpdate, Momentum, Rule, Sgd

GROUPS = ("apply", "drain", "factors", "push", "pull", "replicas", "copies", "links", "failover")
MEGA = 1 << 18
"""Float32 numbers of a megabyte (2²⁰ bytes)."""
KILO = MEGA >> 10
MEGABITS = 200
"""Megabits per second of slow links."""
RULES: tuple[Rule, ...] = (AddUpdate(), Sgd(), Momentum(0.9), Adagrad())
FACTOR_RULES: tuple[Rule, ...] = (Sgd(), Momentum(0.9), Adagrad())


def cases() -> list[Case[Any]]:
    """All measurements: shards of 16 KB, 1 and 64 MB for updates; of 16 KB, 1 and 16 MB for pushes and
    pulls."""
    shards = (1 << 14, 1 << 20, 16 << 20)
    return [
        *_cases((MEGA, 16 * KILO, 64 * MEGA), 64 * MEGA, ((256, 1024), (4096, 4096))),
        *_exchanges(shards, 16 << 20, TRANSPORTS),
        Case("replicas", "adam-mnist", replicas.measured, ReplicaCounts(), is_measured_once=True),
        *_copies((1 << 14, 1 << 20), 16 << 20, (1, 2, 3, 4, 5)),
        *_links(1 << 20, (1, 2, 3, 4, 5)),
        *_failovers(1 << 20, 9),
    ]


def quick_cases() -> list[Case[Any]]:
    """Small measurements, to try the command."""
    return [
        *_cases((16 * KILO,), MEGA // 16, ((16, 96),)),
        *_exchanges((1 << 14,), 1 << 16, ("shared memory",)),
        Case("replicas", "adam-mnist", replicas.measured, ReplicaCounts((1, 2), 0.3), is_measured_once=True),
        *_copies((1 << 14,), 1 << 18, (1, 2)),
        *_links(1 << 18, (1, 2), clients=2, push_seconds=0.3, pull_seconds=0.3),
        *_failovers(1 << 18, 1),
    ]


def _exchanges(
    shards: tuple[int, ...], vector_bytes: int, transports: tuple[Transport, ...]
) -> list[Case[Any]]:
    return [
        Case(one.verb, one.name, push_pull.measured, one, is_measured_once=True)
        for one in exchanges(shards, vector_bytes, transports)
    ]


def _copies(shards: tuple[int, ...], vector_bytes: int, counts: tuple[int, ...]) -> list[Case[Any]]:
    found = [
        Copies(one.name, one.model, counts)
        for one in exchanges(shards, vector_bytes, (COPIED,))
        if one.verb == "push"
    ]
    return [Case("copies", one.name, copies.measured, one, is_measured_once=True) for one in found]


def _links(vector_bytes: int, counts: tuple[int, ...], **few: Any) -> list[Case[Any]]:
    (one,) = (one for one in exchanges((1 << 14,), vector_bytes, (COPIED,)) if one.verb == "push")
    what = Links(MEGABITS, one.model, counts, **few)
    return [Case("links", what.name, links.measured, what, is_measured_once=True)]


def _failovers(vector_bytes: int, times: int) -> list[Case[Any]]:
    (one,) = (one for one in exchanges((1 << 14,), vector_bytes, (COPIED,)) if one.verb == "push")
    found = [Failover(how, one.model, times) for how in (KILLED, STOPPED)]
    return [Case("failover", one.name, failover.measured, one, is_measured_once=True) for one in found]


def _cases(shards: tuple[int, ...], numbers: int, blocks: tuple[tuple[int, int], ...]) -> list[Case[Any]]:
    applied = [
        *(UpdateCase(rule, shard, numbers) for shard in shards for rule in RULES),
        *(UpdateCase(Sgd(), shard, numbers, is_one_call_per_shard=True) for shard in shards if shard <= MEGA),
        *(UpdateCase(rule, shards[0] // 2, numbers // 2, dtype="float64") for rule in (Sgd(), Adagrad())),
        *(UpdateCase(rule, shards[0], numbers, unit_norm=True) for rule in (Sgd(), Adagrad())),
    ]
    drained = [Draining(Sgd(), shard, max(1, numbers // 4 // shard)) for shard in shards if shard <= MEGA]
    first, *others = blocks
    multiplied = [
        *(Factors(rule, *first, numbers) for rule in FACTOR_RULES),
        *(Factors(Sgd(), *block, numbers) for block in others),
    ]
    return [
        *(Case("apply", one.name, update_application.measured, one) for one in applied),
        *(Case("drain", one.name, queue_drain.measured, one) for one in drained),
        *(Case("factors", one.name, factors.measured, one) for one in multiplied),
    ]
