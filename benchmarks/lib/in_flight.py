"""A batch on ranks with slow messages, with one micro-batch in flight and with several.

Knows: a network, hosts with slow links, what is timed. Does not know: the command, tables, where results go.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cotswold.bench.measure import Document, Spread, rounded, rounded_all
from cotswold.bench.ranks.pool import RankPool
from cotswold.bench.ranks.rank import PoolRank
from cotswold.geometry import Grid
from cotswold.testing import Hosts
from cotswold.training.model_parallel.microbatches import ConcurrentMicrobatches, parts_of


@dataclass(frozen=True)
class Subject:
    """Images of a batch on a grid of ranks with separate hosts."""

    grid: str
    rate: str
    """Rate of the links."""
    images: int
    rounds: int


def network() -> nn.Sequential:
    """Return the layers of `adam-mnist` (Chilimbi et al. 2014, section 4)."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 10, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(980, 400),
        nn.ReLU(),
        nn.Linear(400, 400),
        nn.ReLU(),
        nn.Linear(400, 10),
    )


def prepare(rank: PoolRank, subject: Subject, counts: Sequence[int]) -> None:
    """Partition the network, once for each number of micro-batches."""
    rank.cache.update(
        {str(each): ConcurrentMicrobatches(network(), Grid.parse(subject.grid), each) for each in counts}
    )
    numbers = torch.Generator().manual_seed(1)
    rank.cache["images"] = torch.randn(subject.images, 1, 28, 28, generator=numbers)
    rank.cache["classes"] = torch.randint(10, (subject.images,), generator=numbers)


def batch(rank: PoolRank, count: int) -> tuple[float, float]:
    """Compute value and gradient of a batch in ``count`` micro-batches.

    Return the seconds, and the processor seconds of this rank, including system time.
    """
    copies: ConcurrentMicrobatches = rank.cache[str(count)]
    images, classes = rank.cache["images"], rank.cache["classes"]

    def compute(part: Sequence[int], copy: nn.Module) -> None:
        chosen = torch.tensor(part)
        outputs: Tensor = copy(images[chosen])
        loss = nn.functional.cross_entropy(outputs, classes[chosen], reduction="sum")
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    copies.clear()
    dist.barrier()
    began, busy = time.perf_counter(), time.process_time()
    copies.run(parts_of(range(len(images)), count), compute)
    return time.perf_counter() - began, time.process_time() - busy


def measured(subject: Subject, counts: Sequence[int]) -> Document:
    """Return images per second and the idle fraction of ranks, by micro-batches in flight."""
    seconds: dict[str, list[float]] = {str(each): [] for each in counts}
    idle: dict[str, list[float]] = {str(each): [] for each in counts}
    grid = Grid.parse(subject.grid)
    with Hosts(grid.size, subject.rate) as hosts, RankPool(grid.size, hosts=hosts) as pool:
        pool.call(prepare, subject, counts)
        for each in counts:
            pool.call(batch, each)  # connects the ranks
        for _ in range(subject.rounds):
            for each in counts:
                found = pool.call(batch, each)
                slowest = max(took for took, _ in found)
                seconds[str(each)].append(slowest)
                idle[str(each)].append(1 - sum(busy for _, busy in found) / (slowest * grid.size))
    rates = {name: [subject.images / one for one in each] for name, each in seconds.items()}
    return {
        "images_a_second": {name: rounded_all(each) for name, each in rates.items()},
        "spread_images_a_second": {name: Spread.from_samples(each).as_dict() for name, each in rates.items()},
        "idle": {name: rounded(Spread.from_samples(each).median) for name, each in idle.items()},
    }
