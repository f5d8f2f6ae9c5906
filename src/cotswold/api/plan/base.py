"""Plan of a full-batch run: processes, ports, bytes, memory, time, cost.

Knows: counts of a recipe, memory and messages of each kind of process. Does not know: training, the terminal.
Nothing is trained; the time is measured on a few portions of random numbers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cotswold.geometry import Grid

if TYPE_CHECKING:
    from cotswold.recipe import Recipe
    from cotswold.recipe.schema import BatchTraining
    from cotswold.training.strategies.base import Batch

Row = dict[str, object]
FLOAT_BYTES = 4
PROCESS_BYTES = 200 << 20
"""Memory of a process that has imported torch, without its data; the fork server shares most of it."""
EVALUATIONS_PER_ITERATION = {"lbfgs": 1.2, "cg": 2.0}
"""Typical evaluations per iteration on smooth problems, for the expected time and cost of a run."""
MEASURED_SECONDS = 1.0
START_SECONDS = 3.5
"""Seconds from the command to the first evaluation in one process: Python, torch, the recipe.

This and the following times were measured on two otherwise idle cores of an AMD EPYC, with a network 20-30-3
and 1080 samples.
"""
CLUSTER_START_SECONDS = 2.7
"""Additional seconds with workers on this machine: 2.4 to 2.6 s with 2 and 4 workers.

Other machines take longer, by the time that Ray needs to start a process there.
"""
MESSAGES_SECONDS = 0.014
"""Seconds for the messages of an evaluation and of the following validation.

A pair takes 15.3 ms with 2 workers and 18.2 ms with 4, of which 2 ms are computation. Network latency between
machines is added.
"""


def plan_row(recipe: Recipe, training: BatchTraining) -> Row:
    """Return the plan of a run of strategy `batch`."""
    from cotswold.training.data.stores import class_count
    from cotswold.training.models import planned_layers

    outputs, cluster = class_count(recipe), recipe.cluster
    layers = planned_layers(recipe, outputs)
    size = sum(layer.parameters for layer in layers)
    vector = FLOAT_BYTES * size
    samples, exact = training_samples(recipe)
    alone = recipe.alone
    servers, workers = (0, 0) if alone else (cluster.servers, cluster.workers)
    vectors = _vectors(training)
    server_vectors = (vectors + workers) // max(servers, 1)
    sample_bytes = recipe.input.size * _item_bytes(recipe)
    counted = max(1, round(samples * training.sample_fraction))
    evaluations = _evaluations(training, counted * _flops(layers))
    seconds = _seconds(recipe, training, outputs)
    evaluation_seconds = counted * seconds / concurrent_processes(recipe) + (0 if alone else MESSAGES_SECONDS)
    row: Row = {
        "processes": 1 if alone else 1 + servers + workers * _ranks(recipe),
        "workers": workers,
        "servers": servers,
        "ports": ports(recipe, servers + workers),
        "parameters": size,
        "samples": samples,
        **({} if exact else {"samples_are": "approximate, before the data are prepared"}),
        "portions": -(-samples // training.portion_size),
        "vectors": vectors,
        "vectors_bytes": vectors * vector,
        "samples_bytes": samples * sample_bytes,
        "worker_memory_bytes": 0 if alone else PROCESS_BYTES + _worker_vectors(recipe) * vector,
        "server_memory_bytes": 0 if alone else PROCESS_BYTES + server_vectors * vector,
        "checkpoint_bytes": _checkpoint_vectors(training) * vector,
        "evaluation_flops": counted * _flops(layers),
        "evaluation_wire_bytes": 0 if alone else 2 * workers * vector,
        "evaluations_expected": evaluations,
        "run_flops": round(evaluations * counted * _flops(layers)),
        "start_seconds": START_SECONDS + (0 if alone else CLUSTER_START_SECONDS),
        "evaluation_seconds": evaluation_seconds,
        **overcommit_warning(recipe),
    }
    row["run_seconds"] = float(str(row["start_seconds"])) + evaluations * evaluation_seconds
    return {**row, **cost(recipe, float(str(row["run_seconds"])))}


def concurrent_processes(recipe: Recipe) -> int:
    """Return the number of processes that compute at once; on this machine at most its cores."""
    from cotswold.api.ranks import cores

    computing = recipe.cluster.workers * _ranks(recipe)
    return computing if recipe.cluster.ray_address is not None else max(1, min(computing, cores()))


def overcommit_warning(recipe: Recipe) -> Row:
    """Return a remark if more processes compute than this machine has cores."""
    from cotswold.api.ranks import cores

    computing, has = recipe.cluster.workers * _ranks(recipe), cores()
    if recipe.cluster.ray_address is not None or computing <= has:
        return {}
    said = f"{computing} processes would share {has} cores and be no faster than {has}"
    return {"workers_are": f"more than cores: {said}"}


def _ranks(recipe: Recipe) -> int:
    """Return the number of processes of a worker or replica."""
    return recipe.cluster.processes if recipe.worker_grid is None else Grid.parse(recipe.worker_grid).size


def cost(recipe: Recipe, seconds: float) -> Row:
    """Return the cost in dollars and the limits; empty without a price."""
    price, row = recipe.price, Row()
    limit = price.seconds_max
    if limit is not None:
        row["limit_seconds"] = limit
        seconds = min(seconds, limit)
    if price.rent_dollars_per_hour is not None:
        row["dollars"] = seconds / 3600 * price.rent_dollars_per_hour
    return row


def training_samples(recipe: Recipe) -> tuple[int, bool]:
    """Return the number of training samples, and whether it is exact."""
    from cotswold.data import Store
    from cotswold.recipe import expand
    from cotswold.training.data.stores import source_of

    if recipe.data.store is not None:
        return Store(expand(recipe.data.store)).splits["train"], True
    data, count = recipe.data, len(source_of(recipe.data))
    limit = getattr(data, "limit", None)
    count = count if limit is None else min(count, limit)
    return max(1, round(count * (1 - float(getattr(data, "validation", 0.0))))), False


def _item_bytes(recipe: Recipe) -> int:
    return {"uint8": 1, "float16": 2, "float32": 4}[str(getattr(recipe.data, "dtype", "float32"))]


def _vectors(training: BatchTraining) -> int:
    """Return the number of vectors in the method: point, gradient, direction, trial point and gradient,
    history.
    """
    from cotswold.training.full_batch.strategy import MEMORY

    return 5 + (2 * ((training.history_size or MEMORY) + 1) if training.method == "lbfgs" else 1)


def _checkpoint_vectors(training: BatchTraining) -> int:
    """Return the number of vectors in a checkpoint."""
    from cotswold.training.full_batch.strategy import MEMORY

    return 2 + (2 * (training.history_size or MEMORY) if training.method == "lbfgs" else 1)


def _worker_vectors(recipe: Recipe) -> int:
    """Return the number of vectors in a worker: point and sum, and the direction with `bunyip`."""
    return 3 if recipe.cluster.point_transfer == "bunyip" else 2


def ports(recipe: Recipe, processes: int) -> str:
    """Describe the ports at which ``processes`` processes and this one listen."""
    if recipe.alone and recipe.training.strategy == "batch":
        return "none"
    if recipe.cluster.ray_address is None:
        return "none: sockets of this machine's file system"
    which = f"of {recipe.cluster.ports}" if recipe.cluster.ports else "any that are free"
    how = "encrypted" if recipe.cluster.encrypt else "not encrypted"
    return f"{processes + 1} TCP ports, one per process, {which} of its machine, {how}; in addition to Ray's"


def _evaluations(training: BatchTraining, flops: int) -> float:
    """Return the expected number of evaluations of a run, each of ``flops`` FLOPs."""
    limits = [EVALUATIONS_PER_ITERATION[training.method] * training.max_iterations]
    limits += [] if training.max_evaluations is None else [training.max_evaluations]
    limits += [] if training.max_flops is None else [training.max_flops / flops]
    return max(1.0, min(limits))


def _flops(layers: Sequence[object]) -> int:
    products = [flops for layer in layers if (flops := int(getattr(layer, "forward_flops", 0)))]
    return 3 * sum(products) - products[0]


def _seconds(recipe: Recipe, training: BatchTraining, outputs: int) -> float:
    """Measure the seconds for value and gradient of a sample, on random numbers."""
    import torch

    from cotswold.training.full_batch.objective import work_of
    from cotswold.training.jobs.restore import supervised_network
    from cotswold.training.losses import loss_of

    class Random:
        is_augmented = False

        def __len__(self) -> int:
            return training.portion_size

        def batch(self, numbers: Sequence[int]) -> Batch:
            return drawn

    drawn = random_batch(recipe, outputs, training.portion_size)
    work = work_of(recipe, supervised_network(recipe, outputs), outputs, loss_of(recipe), Random(), None)
    gradient = torch.zeros_like(work.parameters)
    work.add(range(training.portion_size), gradient)  # compiles kernels
    taken, began = 0, time.perf_counter()
    while taken == 0 or time.perf_counter() - began < MEASURED_SECONDS:
        work.add(range(training.portion_size), gradient)
        taken += training.portion_size
    return (time.perf_counter() - began) / taken


def random_batch(recipe: Recipe, outputs: int, samples: int) -> Batch:
    """Return samples of random numbers in the shape of the recipe's network, with random targets."""
    import torch

    from cotswold.training.strategies.base import Batch

    shape = recipe.input
    inputs = torch.rand(samples, shape.channels, shape.height, shape.width)
    targets = torch.randint(outputs, (samples,))
    if recipe.loss == "squared_error" and recipe.data.type != "images" and not _classes(recipe):
        targets = torch.rand(samples, outputs)
    return Batch(inputs, targets)


def _classes(recipe: Recipe) -> bool:
    from cotswold.data import Store
    from cotswold.recipe import expand
    from cotswold.training.data.stores import source_of

    if recipe.data.store is not None:
        return bool(Store(expand(recipe.data.store)).classes)
    return bool(source_of(recipe.data).classes)
