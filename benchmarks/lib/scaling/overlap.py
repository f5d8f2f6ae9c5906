"""Fraction of the messages' time that is hidden behind computation, over links of a given rate.

Knows: a step, the same step without messages, its exchanges alone, bars. Does not know: how hosts are made.

The hidden fraction is ``1 - (step - step without messages) / (exchanges - exchanges without messages)``: the
messages' time that does not lengthen a step, over their time alone, one exchange after the other. Packing,
unpacking and sums of scalars run in all four cases, so only messages are counted. A second figure is the time
for which the slower rank was blocked by messages in its steps, which includes differences in computing time.
The processor time of messages per rank, including system time, is given too: if every core computes, no
schedule hides it.
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
from cotswold.bench.row import COTSWOLD, Comparison, Row, RowKey
from cotswold.errors import MachineError
from cotswold.geometry import Grid, StackGeometry, StackPartition
from cotswold.testing.hosts import Hosts, Rate
from lib.scaling.messages import Maps, Waits, plans_of_step, without_messages
from lib.scaling.shapes import Fields
from lib.scaling.speed import in_milliseconds
from lib.scaling.stacks import RULE, is_finite, random_images, share_of

BARE, EXCHANGES, PACKING = "step without messages", "exchanges alone", "exchanges without messages"
LINK, LINK_BYTES = "32 MiB from one to the other", 32 << 20
WAITED = "waits of a step"
HIDDEN, BLOCKED = "messages hidden", "messages hidden, by waits"
BAR = 0.9
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Link:
    """A stack over a grid of ranks on separate hosts; ``rate`` of the links is None if unshaped."""

    fields: Fields
    grid: str
    rate: Rate | None

    @property
    def geometry(self) -> StackGeometry:
        """Return the stack with as many blocks per rank as one of the paper's 64 GPUs."""
        return self.fields.times(Grid.parse(self.grid), self.fields.far)

    @property
    def sent_bytes(self) -> int:
        """Return the bytes of all messages of a step."""
        cut = StackPartition(self.geometry, Grid.parse(self.grid))
        below = None if self.fields.first else cut.input.boxes
        points = sum(plan.points * channels for plan, channels in plans_of_step(cut, below))
        return points * self.fields.images * _FLOAT_BYTES


def hold_step(rank: PoolRank, subject: Link) -> None:
    """Make the step of this rank's share, its exchanges, and both without messages actions."""
    fields, whole = subject.fields, random_images(subject.geometry, subject.fields.images)
    os.environ["COTSWOLD_SOCKETS"] = "0"  # only torch's messages can be suppressed and timed
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

    rank.cache.update({COTSWOLD: stack, WAITED: waits})
    rank.actions.update(
        {
            COTSWOLD: waits.counted(step),
            BARE: without_messages(step),
            EXCHANGES: exchanges,
            PACKING: without_messages(exchanges),
            LINK: link,
        }
    )


def waited(rank: PoolRank) -> float:
    """Return the seconds for which this rank was blocked in its last step."""
    waits: Waits = rank.cache[WAITED]
    return waits.seconds


def busy(rank: PoolRank) -> float:
    """Return the processor seconds of all threads of this rank so far, including system time."""
    return time.process_time()


def hidden(subject: Link, effort: Effort) -> list[Row]:
    """Measure the four times, and the hidden fraction of the messages' time."""
    clock, blocked = Stopwatch(), list[float]()
    worked: dict[str, list[float]] = {COTSWOLD: [], BARE: []}
    grid = Grid.parse(subject.grid)
    with Hosts(grid.size, subject.rate) as hosts, RankPool(grid.size, hosts=hosts) as pool:
        pool.call(hold_step, subject)

        def busily(name: str) -> Callable[[], None]:
            action = pool.action(name, clock)

            def noted() -> None:
                before = mean(pool.call(busy))
                action()
                worked[name].append(mean(pool.call(busy)) - before)
                if name == COTSWOLD:
                    blocked.append(max(pool.call(waited)))

            return noted

        actions = {name: busily(name) for name in worked}
        actions |= {name: pool.action(name, clock) for name in (EXCHANGES, PACKING, LINK)}
        samples = interleaved(actions, effort.rounds, clock)
        if not all(pool.call(is_finite, COTSWOLD)):
            raise MachineError(
                f"{subject.fields.name} did not stay finite during the measurement; try --match"
            )
    shape, rate = f"{subject.fields.name}, {subject.grid}", words(subject.rate)
    place = RowKey("hidden", shape, f"step, {rate}", subject.fields.images)
    alone = Spread.from_samples(_less(samples[EXCHANGES], samples[PACKING])).median
    bar = BAR if subject.rate == "10gbit" else None
    facts: dict[str, object] = {
        "bytes_of_all_messages": subject.sent_bytes,
        "link_gbit": rounded(8e-9 * LINK_BYTES / Spread.from_samples(samples[LINK]).median),
        "processor_ms_for_messages": rounded(1e3 * (median(worked[COTSWOLD]) - median(worked[BARE]))),
        "messages_alone_ms": rounded(1e3 * alone),
        "messages_alone_gbit_each_way": rounded(8e-9 * subject.sent_bytes / 2 / alone),
    }
    verdicts = [
        Comparison(HIDDEN, _share(_less(samples[COTSWOLD], samples[BARE]), alone), bar),
        Comparison(BLOCKED, _share(blocked, alone)),
    ]
    return [in_milliseconds(place, {**samples, WAITED: blocked}, verdicts, facts)]


def words(rate: Rate | None) -> str:
    """Return a rate in words."""
    return "unshaped" if rate is None else rate.replace("gbit", " Gb/s")


def _less(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(first, second, strict=True)]


def _share(exposed: Sequence[float], alone: float) -> Spread:
    """Return the hidden fraction of the messages' time, round by round."""
    return Spread.from_samples([1 - one / alone for one in exposed])
