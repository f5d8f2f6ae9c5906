"""Number of replicas that one server process serves: replicas of `adam-mnist` that push and pull after every
step.

Knows: the recipe, the time of its step, numbers of replicas, the bar. Does not know: transport.

Replicas compute nothing here. Each runs in a separate process, sleeps as long as a step of the recipe takes
on one thread, which is measured first, then pushes its gradient and pulls newer shards through shared
memory. If the server is not the bottleneck, it serves all requested steps; the bar is that this holds for 8
replicas. The server's processor time per step shows how many replicas a dedicated core could serve.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from cotswold import recipe as recipes
from cotswold.bench.effort import Effort
from cotswold.bench.measure import Spread, rounded
from cotswold.bench.row import COTSWOLD, Comparison, Row, RowKey
from cotswold.bench.server.processes import REQUESTED_RATE, call_of, name_of, run_processes
from cotswold.bench.server.unreplicated_servers import Model, Transport, UnreplicatedServers, forked
from cotswold.ops import images_last
from cotswold.shards.runtime.work import TensorSlot
from cotswold.training.flat_parameters import FlatParameters
from cotswold.training.jobs.restore import supervised_network
from cotswold.training.losses import loss_of

RECIPE = "adam-mnist"
BAR = 0.95
BAR_REPLICAS = 8
SHARD_BYTES = 1 << 20
TRANSPORT: Transport = "shared memory"
CLASSES = 10
_STEPS = 30
_STEP_FUNCTION = "cotswold.bench.server.processes:step"


@dataclass(frozen=True)
class ReplicaCounts:
    """Numbers of replicas, each for ``seconds``."""

    counts: Sequence[int] = (1, 2, 4, 8, 12, 16, 24, 32)
    seconds: float = 3.0


@dataclass(frozen=True)
class RecipeStep:
    """A recipe's step: its tensors, and its seconds on one thread."""

    layout: tuple[tuple[str, int, int], ...]
    seconds: float


def measured(what: ReplicaCounts, effort: Effort) -> list[Row]:
    """A row for each number of replicas."""
    one = step_of(RECIPE)
    model = Model(one.layout, SHARD_BYTES)
    return [_row(model, one.seconds, count, what.seconds) for count in what.counts]


def step_of(name: str) -> RecipeStep:
    """The step of a shipped recipe on zero images, on one thread: the median of several."""
    recipe = recipes.load(name)
    maps, batch = recipe.input, recipe.training.batch_size
    network = supervised_network(recipe, CLASSES)
    flat, loss = FlatParameters(network.train()), loss_of(recipe)
    images, labels = (
        images_last(torch.zeros(batch, maps.channels, maps.height, maps.width)),
        torch.arange(batch) % 10,
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    taken = []
    try:
        gradient = torch.zeros_like(flat.vector)
        flat.set_grad_views(gradient)
        for _ in range(_STEPS):
            begun = time.perf_counter()
            loss(network(images), labels).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            taken.append(time.perf_counter() - begun)
    finally:
        torch.set_num_threads(threads)
    slots = [TensorSlot.of_shape(*each) for each in zip(flat.names, flat.shapes, strict=True)]
    return RecipeStep(tuple((each.name, each.rows, each.columns) for each in slots), median(taken))


def _row(model: Model, step_seconds: float, count: int, seconds: float) -> Row:
    names = [name_of(number) for number in range(count)]
    more = {"compute_seconds": step_seconds, "seconds": seconds}
    with (
        tempfile.TemporaryDirectory(prefix="cotswold-") as folder,
        UnreplicatedServers(forked(), model, names, TRANSPORT) as served,
    ):
        calls = [call_of(served, each, _STEP_FUNCTION, Path(folder), more) for each in range(count)]
        before = served.counts()[0]
        said = run_processes(forked(), calls, Path(folder), seconds)
        after = served.counts()[0]
    steps = sum(one["steps"] for one in said)
    taken = max(one["seconds"] for one in said)
    served_s = sum(one["steps"] / one["seconds"] for one in said)
    asked_s = count / step_seconds
    cpu = after.cpu_seconds - before.cpu_seconds
    applying = after.applying_seconds - before.applying_seconds
    facts: dict[str, object] = {
        "replicas": count,
        "parameters": model.size,
        "step_seconds": rounded(step_seconds),
        "server_cpu_share": rounded(cpu / taken),
        "server_cpu_seconds_a_step": rounded(cpu / steps),
        "applying_seconds_a_step": rounded(applying / steps),
        "replica_cpu_seconds_a_step": rounded(sum(one["cpu_seconds"] for one in said) / steps),
        "wait_seconds": [rounded(median(one["wait_seconds"][each] for one in said)) for each in (0, 1)],
        "staleness": rounded(after.staleness),
    }
    share = Comparison(
        REQUESTED_RATE, Spread.from_samples([served_s / asked_s]), BAR if count == BAR_REPLICAS else None
    )
    word = "replica" if count == 1 else "replicas"
    figures = {COTSWOLD: Spread.from_samples([served_s]), REQUESTED_RATE: Spread.from_samples([asked_s])}
    samples = {COTSWOLD: [served_s], REQUESTED_RATE: [asked_s]}
    key = RowKey("replicas", RECIPE, f"{count} {word}")
    return Row(key, "steps/s", figures, samples, "rates", [share], facts=facts)
