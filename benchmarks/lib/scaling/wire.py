"""Training over several hosts: results compared with one process, bytes on the wire compared with the plans.

Knows: counters of hosts' interfaces, the plans of a step's exchanges, one process that trains the same stack.
Does not know: how hosts are made, how messages travel.

A run of steps without messages between pairs measures the other traffic: sums of scalars, the barrier, the
store. The rest is messages and their headers: Ethernet, IP and TCP headers per packet, and Gloo's headers per
message. The remainder (segments that TCP sent twice, acknowledgements that were piggybacked in one run and
alone in the other) is bounded.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from cotswold import ops
from cotswold.bench.effort import Effort
from cotswold.bench.measure import Spread
from cotswold.bench.ranks.pool import RankPool, Stopwatch
from cotswold.bench.ranks.rank import PoolRank
from cotswold.bench.row import COTSWOLD, Comparison, Row, RowKey
from cotswold.geometry import BlockLocal, Grid, MapShape, Smoothing, StackGeometry, StackPartition, Window
from cotswold.mesh.stacks.stack import TrainedStack
from cotswold.testing.hosts import HEADER_BYTES, Hosts, Rate, Traffic
from lib.scaling.messages import plans_of_step, without_messages
from lib.scaling.overlap import words
from lib.scaling.speed import in_milliseconds
from lib.scaling.stacks import RULE, random_images, share_of

STEPS = 10
AGREEMENT = 1e-10
"""Largest accepted difference relative to the largest magnitude, in float64."""
UNEXPLAINED_BAR = 0.003
"""Largest accepted unexplained fraction of the plans' bytes."""
GLOO_BYTES = 3 * 48
"""Header bytes of a message: Gloo announces that it is ready to send, that it is ready to receive, and the
payload."""
PLAN, REST, ONE = "the plans' bytes", "without messages", "one process"
UNEXPLAINED = "the plans' bytes, beside headers"
SMALL = StackGeometry(
    BlockLocal(MapShape(3, 36, 40), Window(8, 2), Window(8, 2), rows=2, columns=2, depth=4),
    Smoothing(5, keep=True),
    Smoothing(5, keep=True),
)
"""A stack of 15 x 17 blocks, which do not divide evenly."""
LITTLE = StackGeometry(
    BlockLocal(MapShape(2, 14, 16), Window(6, 2), Window(6, 2), rows=2, columns=2, depth=2),
    Smoothing(3, keep=True),
    Smoothing(3, keep=True),
)


@dataclass(frozen=True)
class Spot:
    """A stack in float64 over a grid of ranks on several hosts."""

    geometry: StackGeometry
    images: int
    grid: str
    hosts: int
    rate: Rate | None

    @property
    def cut(self) -> StackPartition:
        """Return the partition of the stack."""
        return StackPartition(self.geometry, Grid.parse(self.grid))

    def messages(self, pool: RankPool) -> list[int]:
        """Return the planned bytes of every message of a step between ranks on different hosts."""
        value = self.images * torch.float64.itemsize
        return [
            transfer.box.size * channels * value
            for plan, channels in plans_of_step(self.cut, self.cut.input.boxes)
            for transfer in plan.transfers
            if pool.host_of(transfer.source) != pool.host_of(transfer.target)
        ]


@dataclass(frozen=True)
class Wire:
    """Traffic of ten steps: bytes and packets of all hosts' interfaces, and the plans' bytes."""

    with_messages: Traffic
    without_messages: Traffic
    planned_bytes: int
    messages: int

    @property
    def message_bytes(self) -> int:
        """Return the bytes on the wire for messages, including all headers."""
        return self.with_messages.sent_bytes - self.without_messages.sent_bytes

    @property
    def packets(self) -> int:
        """Return the packets for messages, including acknowledgements."""
        return self.with_messages.sent_packets - self.without_messages.sent_packets

    @property
    def header_bytes(self) -> int:
        """Return the bytes of the headers of packets and of messages."""
        return self.packets * HEADER_BYTES + self.messages * GLOO_BYTES

    @property
    def unexplained(self) -> float:
        """Return the traffic that neither plans nor headers explain, as a fraction of the plans' bytes; may
        be negative."""
        return (self.message_bytes - self.header_bytes) / self.planned_bytes - 1


@dataclass(frozen=True)
class Found:
    """Result of a training run over hosts."""

    wire: Wire
    error: float
    """Largest difference from one process over the largest magnitude, of losses and filters."""
    seconds: list[float]


def one_process(rank: PoolRank, subject: Spot) -> tuple[Tensor, Tensor]:
    """Return losses and filters of ten steps in one process."""
    geometry, x = subject.geometry, random_images(subject.geometry, subject.images, torch.float64)
    filters = ops.random_filters(geometry.filters, 0, 0, torch.float64)
    one, objective = torch.ones((), dtype=torch.float64), ops.StackObjective()
    norms = filters.new_ones(geometry.filters.norms_shape)
    state = ops.StackState(filters, norms, torch.zeros_like(filters), one, one.clone())
    ops.calibrate(state, x, geometry, objective)
    losses = [ops.stack_step(state, x, geometry, objective, RULE).loss for _ in range(STEPS)]
    return torch.stack(losses), state.filters


def hold(rank: PoolRank, subject: Spot) -> None:
    """Prepare this rank's share, with its step as an action."""
    whole = random_images(subject.geometry, subject.images, torch.float64)
    os.environ["COTSWOLD_SOCKETS"] = "0"  # only torch's messages can be suppressed and timed
    stack, x = share_of(rank, subject.grid, subject.geometry, whole, first=False)
    rank.cache.update(stack=stack, losses=[])

    def step() -> None:
        rank.cache["losses"].append(stack.step(x, stack.objective_settings, RULE).loss)

    rank.actions[COTSWOLD] = step
    rank.actions[REST] = without_messages(step)


def share(rank: PoolRank) -> tuple[Tensor, Tensor]:
    """Return the losses so far and this rank's filters."""
    stack: TrainedStack = rank.cache["stack"]
    return torch.stack(rank.cache["losses"]), stack.filters


def trained(subject: Spot) -> Found:
    """Run ten steps by all ranks, compare them with one process, and count their bytes."""
    with (
        Hosts(subject.hosts, subject.rate) as hosts,
        RankPool(subject.cut.grid.size, hosts=hosts) as pool,
    ):
        ((losses, filters),) = pool.call(one_process, subject, only=[0])
        pool.call(hold, subject)
        clock, ticks = Stopwatch(), [0.0]
        step, bare = pool.action(COTSWOLD, clock), pool.action(REST, clock)
        begun = hosts.settled_traffic()
        for _ in range(STEPS):
            step()
            ticks.append(clock())
        after = hosts.settled_traffic()
        parts = pool.call(share)
        before_rest = hosts.settled_traffic()
        for _ in range(STEPS):
            bare()
        rest = hosts.settled_traffic().since(before_rest)
        messages = subject.messages(pool)
    wire = Wire(after.since(begun), rest, STEPS * sum(messages), STEPS * len(messages))
    differences = [_difference(found, losses) for found, _ in parts] + [
        _difference(part, filters[box.slices])
        for (_, part), box in zip(parts, subject.cut.blocks.boxes, strict=True)
        if box.size
    ]
    return Found(wire, max(differences), [later - one for one, later in pairwise(ticks)])


def over_hosts(subject: Spot, _: Effort) -> list[Row]:
    """Return bytes on the wire relative to the plans', agreement with one process, and the time of a step."""
    found = trained(subject)
    wire = found.wire
    shape = f"{subject.grid} over {subject.hosts} hosts, {words(subject.rate)}"
    facts: dict[str, object] = {
        "messages": wire.messages,
        "packets": wire.packets,
        "header_bytes": wire.header_bytes,
        "bytes_without_messages": wire.without_messages.sent_bytes,
    }
    bytes_of = {COTSWOLD: [wire.message_bytes], PLAN: [wire.planned_bytes]}
    verdicts = [
        Comparison(PLAN, Spread.from_samples([wire.message_bytes / wire.planned_bytes])),
        Comparison(UNEXPLAINED, Spread.from_samples([abs(wire.unexplained)]), UNEXPLAINED_BAR, "at most"),
    ]
    return [
        Row(
            RowKey("hosts", shape, f"{STEPS} steps, bytes on the wire", subject.images),
            "kB",
            {by: Spread.from_samples([one / 1e3 for one in counted]) for by, counted in bytes_of.items()},
            bytes_of,
            "bytes",
            verdicts,
            facts=facts,
        ),
        Row(
            RowKey("hosts", shape, f"largest difference after {STEPS} steps", subject.images),
            "of the largest magnitude",
            {COTSWOLD: Spread.from_samples([found.error])},
            {COTSWOLD: [found.error]},
            "differences",
            [Comparison(ONE, Spread.from_samples([found.error]), AGREEMENT, "at most")],
        ),
        in_milliseconds(RowKey("hosts", shape, "step", subject.images), {COTSWOLD: found.seconds}, []),
    ]


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())
