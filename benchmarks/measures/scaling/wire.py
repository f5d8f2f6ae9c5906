"""Training over several hosts: what it gives, and what is on the wire beside what the plans say.

Knows: counters of hosts' interfaces, the plans of a step's exchanges, one process that trains the same. Does
not know: how hosts are made, how messages travel.

A run of steps whose messages between pairs are left out measures what else is on the wire: sums of scalars,
the barrier, the store. The rest is messages, and their headers: so many bytes a packet for Ethernet, IP and
TCP, and Gloo's own, so many a message. What then remains (segments that TCP sent twice, acknowledgements that
came with other traffic in one run and alone in the other) is bounded.
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
from cotswold.bench.row import OURS, Comparison, Row, RowKey
from cotswold.geometry import BlockLocal, Grid, MapShape, Smoothing, StackGeometry, StackPartition, Window
from cotswold.mesh.stacks.stack import TrainedStack
from cotswold.testing.hosts import HEADER_BYTES, Hosts, Rate, Traffic
from measures.scaling.hidden import words
from measures.scaling.messages import plans_of_step, without_messages
from measures.scaling.speed import in_milliseconds
from measures.scaling.stacks import RULE, random_images, share_of

STEPS = 10
AGREEMENT = 1e-10
"""Of the largest magnitude, in float64."""
UNEXPLAINED_BAR = 0.003
"""Of the plans' bytes."""
GLOO_BYTES = 3 * 48
"""Of a message: Gloo says that it is ready to send, that it is ready to receive, and what follows."""
PLAN, REST, ONE = "the plans' bytes", "without messages", "one process"
UNEXPLAINED = "the plans' bytes, beside headers"
SMALL = StackGeometry(
    BlockLocal(MapShape(3, 36, 40), Window(8, 2), Window(8, 2), rows=2, columns=2, depth=4),
    Smoothing(5, keep=True),
    Smoothing(5, keep=True),
)
"""15 x 17 blocks: they do not divide."""
LITTLE = StackGeometry(
    BlockLocal(MapShape(2, 14, 16), Window(6, 2), Window(6, 2), rows=2, columns=2, depth=2),
    Smoothing(3, keep=True),
    Smoothing(3, keep=True),
)


@dataclass(frozen=True)
class Spot:
    """A stack over a grid whose ranks are spread over so many hosts, in float64."""

    geometry: StackGeometry
    images: int
    grid: str
    hosts: int
    rate: Rate | None

    @property
    def cut(self) -> StackPartition:
        """Who has what."""
        return StackPartition(self.geometry, Grid.parse(self.grid))

    def messages(self, pool: RankPool) -> list[int]:
        """The bytes of every message of a step between ranks on different hosts, as the plans say."""
        value = self.images * torch.float64.itemsize
        return [
            transfer.box.size * channels * value
            for plan, channels in plans_of_step(self.cut, self.cut.input.boxes)
            for transfer in plan.transfers
            if pool.host_of(transfer.source) != pool.host_of(transfer.target)
        ]


@dataclass(frozen=True)
class Wire:
    """What ten steps put on the wire: bytes and packets of all hosts' interfaces, and what was planned."""

    with_messages: Traffic
    without_messages: Traffic
    planned_bytes: int
    messages: int

    @property
    def message_bytes(self) -> int:
        """Bytes on the wire for messages, every header included."""
        return self.with_messages.sent_bytes - self.without_messages.sent_bytes

    @property
    def packets(self) -> int:
        """Packets for messages, acknowledgements included."""
        return self.with_messages.sent_packets - self.without_messages.sent_packets

    @property
    def header_bytes(self) -> int:
        """Bytes of the headers of packets and of messages."""
        return self.packets * HEADER_BYTES + self.messages * GLOO_BYTES

    @property
    def unexplained(self) -> float:
        """What neither plans nor headers explain, as a share of the plans' bytes; may be negative."""
        return (self.message_bytes - self.header_bytes) / self.planned_bytes - 1


@dataclass(frozen=True)
class Found:
    """What a training run over hosts gave."""

    wire: Wire
    error: float
    """The largest difference from one process over the largest magnitude, of losses and filters."""
    seconds: list[float]


def one_process(rank: PoolRank, subject: Spot) -> tuple[Tensor, Tensor]:
    """Losses and filters of ten steps in one process."""
    geometry, x = subject.geometry, random_images(subject.geometry, subject.images, torch.float64)
    filters = ops.random_filters(geometry.filters, 0, 0, torch.float64)
    one, objective = torch.ones((), dtype=torch.float64), ops.StackObjective()
    norms = filters.new_ones(geometry.filters.norms_shape)
    state = ops.StackState(filters, norms, torch.zeros_like(filters), one, one.clone())
    ops.calibrate(state, x, geometry, objective)
    losses = [ops.stack_step(state, x, geometry, objective, RULE).loss for _ in range(STEPS)]
    return torch.stack(losses), state.filters


def hold(rank: PoolRank, subject: Spot) -> None:
    """This rank's share, and its step as an action."""
    whole = random_images(subject.geometry, subject.images, torch.float64)
    os.environ["COTSWOLD_SOCKETS"] = "0"  # messages by torch are those that can be left out and timed
    stack, x = share_of(rank, subject.grid, subject.geometry, whole, first=False)
    rank.kept.update(stack=stack, losses=[])

    def step() -> None:
        rank.kept["losses"].append(stack.step(x, stack.objective_settings, RULE).loss)

    rank.actions[OURS] = step
    rank.actions[REST] = without_messages(step)


def share(rank: PoolRank) -> tuple[Tensor, Tensor]:
    """Losses so far and this rank's filters."""
    stack: TrainedStack = rank.kept["stack"]
    return torch.stack(rank.kept["losses"]), stack.filters


def trained(subject: Spot) -> Found:
    """Ten steps by all ranks, compared with one process, their bytes counted."""
    with (
        Hosts(subject.hosts, subject.rate) as hosts,
        RankPool(subject.cut.grid.size, hosts=hosts) as pool,
    ):
        ((losses, filters),) = pool.call(one_process, subject, only=[0])
        pool.call(hold, subject)
        clock, ticks = Stopwatch(), [0.0]
        step, bare = pool.action(OURS, clock), pool.action(REST, clock)
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
    """Bytes on the wire beside the plans', agreement with one process, and the time of a step."""
    found = trained(subject)
    wire = found.wire
    shape = f"{subject.grid} over {subject.hosts} hosts, {words(subject.rate)}"
    facts: dict[str, object] = {
        "messages": wire.messages,
        "packets": wire.packets,
        "header_bytes": wire.header_bytes,
        "bytes_without_messages": wire.without_messages.sent_bytes,
    }
    bytes_of = {OURS: [wire.message_bytes], PLAN: [wire.planned_bytes]}
    verdicts = [
        Comparison(PLAN, Spread.of([wire.message_bytes / wire.planned_bytes])),
        Comparison(UNEXPLAINED, Spread.of([abs(wire.unexplained)]), UNEXPLAINED_BAR, "at most"),
    ]
    return [
        Row(
            RowKey("hosts", shape, f"{STEPS} steps, bytes on the wire", subject.images),
            "kB",
            {by: Spread.of([one / 1e3 for one in counted]) for by, counted in bytes_of.items()},
            bytes_of,
            "bytes",
            verdicts,
            facts=facts,
        ),
        Row(
            RowKey("hosts", shape, f"largest difference after {STEPS} steps", subject.images),
            "of the largest magnitude",
            {OURS: Spread.of([found.error])},
            {OURS: [found.error]},
            "differences",
            [Comparison(ONE, Spread.of([found.error]), AGREEMENT, "at most")],
        ),
        in_milliseconds(RowKey("hosts", shape, "step", subject.images), {OURS: found.seconds}, []),
    ]


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())
