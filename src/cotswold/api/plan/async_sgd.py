"""Plan of a run with replicas: processes, shards and their servers, memory, bytes, time, cost.

Knows: memory and messages of each kind of process. Does not know: training, other strategies (`base`).
Nothing is trained; the time is measured on a few batches of random numbers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cotswold.api.plan import base as plan
from cotswold.api.plan import cluster as cluster_plan

if TYPE_CHECKING:
    from cotswold.recipe import Recipe
    from cotswold.recipe.schema import DownpourTraining
    from cotswold.training.async_sgd.replica_task import ReplicaTask
    from cotswold.training.strategies.base import Batch
    from cotswold.wire import Shard

REPLICA_VECTORS = 4
"""Vectors of a replica: the current and previous parameters, the accumulated gradient, and the push in
progress.
"""
DEVICE_REPLICA_VECTORS, DEVICE_VECTORS = 3, 3
"""Vectors of a replica on a device.

In memory: the previous parameters and two pushes. On the device: the parameters, the accumulated gradient
and the previous state.
"""
MAIN_VECTORS = 3
"""Vectors of the process of `cotswold train`: saved network, initial parameters, best parameters.

A checkpoint's vectors are added until they are written.
"""
EVALUATOR_VECTORS = 2
"""Vectors of an evaluator: the network, and the pulled parameters."""


def plan_row(recipe: Recipe, training: DownpourTraining) -> plan.Row:
    """Return the plan of a recipe whose input is known. Raises MachineError if its device is missing."""
    from cotswold.replicas.startup import QUEUE_VECTORS
    from cotswold.shards.runtime.layout import split_into_shards
    from cotswold.training.async_sgd.strategy import pace_of, rule_of, settings_of
    from cotswold.training.data.stores import class_count
    from cotswold.training.jobs.restore import check_training_device
    from cotswold.training.models import layer_names, layers_bytes

    check_training_device(training)
    outputs, cluster = class_count(recipe), recipe.cluster
    work = _work(recipe, training, outputs)
    settings, pace = settings_of(recipe), pace_of(recipe, training)
    controllers = cluster.controllers
    own_servers = [f"server-{number}" for number in range(cluster.servers)]
    parts = [f"part {number}" for number in range(settings.processes.max_buckets or 0)]
    servers = own_servers if controllers is None else parts
    shards = split_into_shards(work.layout, plan.FLOAT_BYTES, settings.processes.shard_bytes, servers)
    size = work.parameters.numel()
    vector = plan.FLOAT_BYTES * size
    kept = 1 + len(rule_of(training).state_names)
    samples, exact = plan.training_samples(recipe)
    pushed = _push_bytes(recipe, training, work, shards)
    seconds = _seconds(work, training.batch_size)
    own = {name: sum(_bytes(each) for each in shards if each.server == name) for name in servers}
    names = layer_names(work.flat.module)
    activations = layers_bytes(recipe, outputs, training.batch_size) - 3 * vector
    processes, evaluators = settings.processes.ranks, int(bool(recipe.data.validation))
    endpoints = cluster.workers * (1 if recipe.worker_grid is None else processes)
    started, kept_most = sum(map(bool, own.values())) if controllers is None else 0, max(own.values())
    # a checkpoint copies the vectors until it is written
    serving: plan.Row = {
        "server_bytes": {name: count for name, count in own.items() if count},
        "server_memory_bytes": plan.PROCESS_BYTES + (2 * kept + 1) * kept_most,
        "queue_most_bytes": QUEUE_VECTORS * cluster.workers * vector,
    }
    if controllers is not None:
        serving = cluster_plan.cluster_row(controllers, sum(map(bool, own.values())), (2 * kept + 1) * vector)
    row: plan.Row = {
        "processes": 1 + started + cluster.workers * processes + evaluators,
        "evaluators": evaluators,
        "replicas": cluster.workers,
        **({"processes_per_replica": processes} if processes > 1 else {}),
        "servers": started,
        "ports": plan.ports(recipe, started + endpoints),
        "parameters": size,
        "samples": samples,
        **({} if exact else {"samples_are": "approximate, before the data are prepared"}),
        "steps_per_epoch": -(-samples // training.batch_size),
        "shards": len(shards),
        "routing": [
            {"shard": each.number, "tensor": each.tensor, "called": _tensor_label(each.tensor, names)}
            | {"block": each.block, "server": each.server, "bytes": _bytes(each)}
            for each in shards
        ],
        **serving,
        **_replica_bytes(training, vector, activations),
        **({"evaluator_memory_bytes": plan.PROCESS_BYTES + EVALUATOR_VECTORS * vector} if evaluators else {}),
        "main_memory_bytes": plan.PROCESS_BYTES + (MAIN_VECTORS + kept) * vector,
        "checkpoint_bytes": kept * vector,
        "step_bytes": {"push": pushed, "pull": vector / pace.n_fetch},
        "step_flops": training.batch_size * work.flops[1],
        "run_flops": training.epochs * samples * work.flops[1],
        "start_seconds": plan.START_SECONDS + plan.CLUSTER_START_SECONDS,
        "step_seconds": training.batch_size * seconds,
        **plan.overcommit_warning(recipe),
    }
    learning = training.epochs * samples * seconds / _concurrent_replicas(recipe)
    row["run_seconds"] = plan.START_SECONDS + plan.CLUSTER_START_SECONDS + learning
    return {**row, **plan.cost(recipe, float(str(row["run_seconds"])))}


def _replica_bytes(training: DownpourTraining, vector: int, activations: int) -> plan.Row:
    if training.device == "cpu":
        return {"replica_memory_bytes": plan.PROCESS_BYTES + REPLICA_VECTORS * vector + activations}
    return {
        "replica_memory_bytes": plan.PROCESS_BYTES + DEVICE_REPLICA_VECTORS * vector,
        "replica_device_bytes": DEVICE_VECTORS * vector + activations,
    }


def _concurrent_replicas(recipe: Recipe) -> int:
    """Replicas that compute at the same time."""
    from cotswold.kernels.machine.cuda_devices import cuda_device_count

    device = recipe.training.device
    if device == "cpu":
        return plan.concurrent_processes(recipe)
    return min(recipe.cluster.workers, cuda_device_count() if device == "cuda" else 1)


def _tensor_label(tensor: str, names: Mapping[str, str]) -> str:
    """Return `layer 2 weight` for a tensor of a layer."""
    module, _, name = tensor.rpartition(".")
    return f"{names.get(module, module)} {name}".strip()


def _bytes(shard: Shard) -> int:
    return plan.FLOAT_BYTES * (shard.stop - shard.start)


def _work(recipe: Recipe, training: DownpourTraining, outputs: int) -> ReplicaTask:
    """Return a replica's work on random numbers."""
    import torch

    from cotswold.training.async_sgd.push_format import push_formats
    from cotswold.training.async_sgd.replica_task import ReplicaTask, flops_of
    from cotswold.training.devices import with_cpu_device
    from cotswold.training.jobs.restore import supervised_network
    from cotswold.training.losses import loss_of

    batch = plan.random_batch(recipe, outputs, training.batch_size)

    class Random:
        is_augmented = False

        def __len__(self) -> int:
            return training.batch_size

        def batch(self, numbers: Sequence[int]) -> Batch:
            return batch

    network = supervised_network(with_cpu_device(recipe), outputs)
    ways, decay, clip = push_formats(network, training), training.weight_decay, training.clip_norm
    work = ReplicaTask(network, loss_of(recipe), Random(), flops_of(network), ways, decay, clip)
    if training.device != "cpu":
        work.move_to(torch.device(training.device))
    return work


def _push_bytes(
    recipe: Recipe, training: DownpourTraining, work: ReplicaTask, shards: Sequence[Shard]
) -> dict[str, float]:
    """Return the bytes that a step of a replica pushes to all servers, by kind."""
    import torch

    from cotswold.training.async_sgd.strategy import local_steps_of, pace_of

    pace, own = pace_of(recipe, training), local_steps_of(recipe, training)
    numbers = work.parameters.numel()
    if own != "none" or recipe.worker_grid is not None or recipe.cluster.processes > 1:
        kind = "delta" if own == "pushed" else "gradient"
        return {kind: plan.FLOAT_BYTES * numbers / pace.n_push}
    work.lay(shards, pace.batch * pace.n_push)
    work.compute(range(pace.batch), torch.zeros_like(work.parameters))
    work.take_factors()
    factored = [each for each in work.costs.values() if each.push_format == "factors"]
    whole = numbers - sum(each.gradient for each in factored)
    found = {"gradient": plan.FLOAT_BYTES * whole / pace.n_push}
    if factored:
        found["factors"] = plan.FLOAT_BYTES * sum(each.factors or 0 for each in factored) / pace.n_push
    return found


def _seconds(work: ReplicaTask, batch: int) -> float:
    """Measure the seconds that a sample takes in a step."""
    import torch

    gradient = torch.zeros_like(work.parameters)
    work.compute(range(batch), gradient)  # compiles kernels
    steps, began = 0, time.perf_counter()
    while steps == 0 or time.perf_counter() - began < plan.MEASURED_SECONDS:
        work.compute(range(batch), gradient)
        work.take_factors()
        steps += 1
    return (time.perf_counter() - began) / (steps * batch)
