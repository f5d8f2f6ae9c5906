"""How much of the time of messages is hidden behind computation, over links of a given rate.

Knows: a step, the same step without messages, its exchanges alone, bars. Does not know: how hosts are made.

Hidden is what a step does not take longer for its messages, as a share of the time that they take alone, one
exchange after the other: ``1 - (step - step without messages) / (exchanges - exchanges without messages)``.
Packing, unpacking and sums of scalars go on in all four, so that messages alone are counted. Beside it stands
for how long the ranks, the slower of them, were blocked by messages in their steps, which also holds what one
computes longer than another. The processor's time that messages take of a rank, the kernel's included, is
given too: where every core computes, no order of computing hides it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median

import torch
import torch.distributed as dist

from cotswold.bench.effort import Effort
from cotswold.bench.measure import Spread, interleaved, rounded
from cotswold.bench.ranks.pool import RankPool, Stopwatch
from cotswold.bench.ranks.rank import PoolRank
from cotswold.bench.row import OURS, Comparison, Row, RowKey
from cotswold.errors import MachineError
from cotswold.geometry import Grid, StackGeometry, StackPartition
from cotswold.testing.hosts import Hosts, Rate
from measures.scaling.messages import Maps, Waits, plans_of_step, without_messages
from measures.scaling.shapes import Fields
from measures.scaling.speed import in_milliseconds
from measures.scaling.stacks import RULE, is_finite, random_images, share_of

BARE, EXCHANGES, PACKING = "step without messages", "exchanges alone", "exchanges without messages"
LINK, LINK_BYTES = "32 MiB from one to the other", 32 << 20
WAITED = "waits of a step"
HIDDEN, BLOCKED = "messages hidden", "messages hidden, by waits"
BAR = 0.9
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Link:
    """A stack over a grid whose ranks have a host each; ``rate`` is that of the links, None unshaped."""

    fields: Fields
    grid: str
    rate: Rate | None

    @property
    def geometry(self) -> StackGeometry:
        """As many blocks a rank as one of the paper's 64 GPUs has."""
        return self.fields.times(Grid.parse(self.grid), self.fields.far)

    @property
    def sent_bytes(self) -> int:
        """Bytes of all messages of a step."""
        cut = StackPartition(self.geometry, Grid.parse(self.grid))
        below = None if self.fields.first else cut.input.boxes
        points = sum(plan.points * channels for plan, channels in plans_of_step(cut, below))
        return points * self.fields.images * _FLOAT_BYTES


def hold_step(rank: PoolRank, subject: Link) -> None:
    """The step of this rank's share, its exchanges, and both without messages become actions."""
    fields, whole = subject.fields, random_images(subject.geometry, subject.fields.images)
    os.environ["COTSWOLD_SOCKETS"] = "0"  # messages by torch are those that can be left out and timed
    stack, x = share_of(rank, subject.grid, subject.geometry, whole, fields.first)
    maps, waits = Maps(stack.share, fields.images), Waits()

    def step() -> None:
        stack.step(x, stack.objective_settings, RULE)

    def exchanges() -> None:
        for exchange in maps.of_step():
            exchange()

    much = torch.zeros(LINK_BYTES // _FLOAT_BYTES)

    def link() -> None:
        if rank.number == 0:
            dist.send(much, 1)
        elif rank.number == 1:
            dist.recv(much, 0)

    rank.kept.update({OURS: stack, WAITED: waits})
    rank.actions.update(
        {
            OURS: waits.counted(step),
            BARE: without_messages(step),
            EXCHANGES: exchanges,
            PACKING: without_messages(exchanges),
            LINK: link,
        }
    )


def waited(rank: PoolRank) -> float:
    """Seconds that this rank was blocked in its last step."""
    waits: Waits = rank.kept[WAITED]
    return waits.seconds


def busy(rank: PoolRank) -> float:
    """Seconds that all threads of this rank have computed so far, the kernel's work for them included."""
    return time.process_time()


def hidden(subject: Link, effort: Effort) -> list[Row]:
    """The four times, and the share of the messages' that is hidden."""
    clock, blocked = Stopwatch(), list[float]()
    worked: dict[str, list[float]] = {OURS: [], BARE: []}
    grid = Grid.parse(subject.grid)
    with Hosts(grid.size, subject.rate) as hosts, RankPool(grid.size, hosts=hosts) as pool:
        pool.call(hold_step, subject)

        def busily(name: str) -> Callable[[], None]:
            action = pool.action(name, clock)

            def noted() -> None:
                before = mean(pool.call(busy))
                action()
                worked[name].append(mean(pool.call(busy)) - before)
                if name == OURS:
                    blocked.append(max(pool.call(waited)))

            return noted

        actions = {name: busily(name) for name in worked}
        actions |= {name: pool.action(name, clock) for name in (EXCHANGES, PACKING, LINK)}
        samples = interleaved(actions, effort.rounds, clock)
        if not all(pool.call(is_finite, OURS)):
            raise MachineError(
                f"{subject.fields.name} did not stay finite while it was measured; try --match"
            )
    shape, rate = f"{subject.fields.name}, {subject.grid}", words(subject.rate)
    place = RowKey("hidden", shape, f"step, {rate}", subject.fields.images)
    alone = Spread.of(_less(samples[EXCHANGES], samples[PACKING])).median
    bar = BAR if subject.rate == "10gbit" else None
    facts: dict[str, object] = {
        "bytes_of_all_messages": subject.sent_bytes,
        "link_gbit": rounded(8e-9 * LINK_BYTES / Spread.of(samples[LINK]).median),
        "processor_ms_for_messages": rounded(1e3 * (median(worked[OURS]) - median(worked[BARE]))),
        "messages_alone_ms": rounded(1e3 * alone),
        "messages_alone_gbit_each_way": rounded(8e-9 * subject.sent_bytes / 2 / alone),
    }
    verdicts = [
        Comparison(HIDDEN, _share(_less(samples[OURS], samples[BARE]), alone), bar),
        Comparison(BLOCKED, _share(blocked, alone)),
    ]
    return [in_milliseconds(place, {**samples, WAITED: blocked}, verdicts, facts)]


def words(rate: Rate | None) -> str:
    """A rate in words."""
    return "unshaped" if rate is None else rate.replace("gbit", " Gb/s")


def _less(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(first, second, strict=True)]


def _share(exposed: Sequence[float], alone: float) -> Spread:
    """The part of the messages' time that was not to be seen, round by round."""
    return Spread.of([1 - one / alone for one in exposed])
