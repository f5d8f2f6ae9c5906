"""Figures of the pages *Staleness, Exactly-once pushes and Replication*, and where they come from.

Knows: sentences of the pages. Does not know: how they are looked for.
"""

from __future__ import annotations

from functools import partial
from math import exp

from tests.support.explanation.quote import CODE, NUMBERS, Quote
from tests.support.explanation.reading import (
    adam,
    copy_costs,
    counts,
    links,
    rounded,
    seconds,
    stale,
    staleness,
)

from cotswold.recipe.schema.cluster import MOST_COPIES
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.replication.replica.lease import DRIFT

STALENESS = [
    *(
        Quote(
            "staleness",
            f"| {number} | {{}} | {2 * number - 1} |",
            "staleness",
            partial(staleness, replicas=number),
        )
        for number in (1, 4, 16, 64, 256)
    ),
    *(
        Quote(
            "staleness",
            f"| {number} | {{}} % | {{}} % | {{}} % |",
            "staleness",
            partial(stale, replicas=number),
        )
        for number in (1, 4, 16, 64)
    ),
    Quote("staleness", "| 256 | {} % | {} % | not run |", "staleness", lambda d: stale(d, 256)),
    Quote(
        "staleness",
        "a factor of {} (one standard deviation)",
        "staleness",
        lambda d: rounded([exp(d["settings"]["speeds"])], 2),
    ),
    Quote("staleness", "| 1 | {} | {} % |", "adam-accuracy", lambda d: adam(d, 1)),
    *(
        Quote(
            "staleness",
            f"| {number} | {{}} | {{}} % | {{}} points ({{}} to {{}}) |",
            "adam-accuracy",
            partial(adam, replicas=number),
        )
        for number in (4, 16)
    ),
]

SERVERS = [
    Quote(
        "exactly-once",
        "{} faults of {} kinds",
        "fault-training",
        lambda d: [sum(each["times"] for each in d["failovers"]), len(d["failovers"])],
    ),
    Quote(
        "exactly-once",
        "{} samples had counted once, and {} were torn",
        "fault-training",
        lambda d: counts(d, "every sample counts once")[:2],
    ),
    Quote(
        "exactly-once",
        "Each of {} shards had {} updates",
        "fault-training",
        lambda d: counts(d, "every push is in every shard")[2:],
    ),
    Quote(
        "exactly-once",
        "left {1} batches in each of {0} shards",
        "fault-training",
        lambda d: counts(d, "updates add up exactly")[:2],
    ),
    Quote(
        "replication",
        "again {} s after a primary is killed, and {} s after it is suspended",
        "server-failover-zen5",
        lambda d: [seconds(d, f"a primary is {what}") for what in ("killed", "stopped")],
    ),
    *(
        Quote(
            "replication",
            text,
            "server-copies",
            partial(copy_costs, kilobytes=size),
        )
        for size, text in (
            ("16 KB", "| 16 KB | {} times the processor time | {} times |"),
            ("1 MB", "| 1 MB | {} times | {} times |"),
        )
    ),
    Quote(
        "replication",
        "{} of the rate of one copy by star, and {} by chain",
        "server-links-zen5",
        lambda d: [links(d, way) for way in ("star", "chain")],
    ),
    Quote("replication", "subtracts {:g} %", CODE, lambda _: [100 * DRIFT]),
    Quote(
        "replication",
        "A lease lasts {} second",
        CODE,
        lambda _: [NUMBERS[int(ControllerSettings().lease_seconds)]],
    ),
    Quote("replication", "up to {} further copies", CODE, lambda _: [NUMBERS[MOST_COPIES - 1]]),
]
