"""Rules between the tables of a recipe.

Knows: which values contradict each other, with the remedy. Does not know: files, tensors.
"""

from __future__ import annotations

import re

from cotswold.recipe.bounds import shorten_value
from cotswold.recipe.schema.cluster import Cluster
from cotswold.recipe.schema.copies import check_copies
from cotswold.recipe.schema.data import GivenData, ImageData, TableData
from cotswold.recipe.schema.strategy import AUTO
from cotswold.recipe.schema.tables import Tables
from cotswold.recipe.schema.training import (
    BatchTraining,
    DownpourTraining,
    LossObjective,
    StackTraining,
    SupervisedTraining,
)

NAME_BYTES_MAX = 240
"""Longest name of a recipe in bytes: a file name has at most 255, and a store's name is longer than the
recipe's.
"""


def check(recipe: Tables) -> None:
    """Raise ValueError for the first contradiction; the message names the fields."""
    strategy = recipe.training.strategy
    if not re.fullmatch(r"\w[\w .+-]*", recipe.name) or len(recipe.name.encode()) > NAME_BYTES_MAX:
        raise ValueError(
            f"name is {shorten_value(recipe.name)}, but directories are named after it; use letters, digits, "
            f"_, - and ., at most {NAME_BYTES_MAX} bytes"
        )
    if not isinstance(recipe.data, GivenData) and (recipe.data.source is None) == (recipe.data.store is None):
        raise ValueError("[data] needs either source or store; give one of them")
    if strategy == "batch" and isinstance(recipe.data, ImageData) and recipe.data.augment:
        raise ValueError(
            "strategy batch compares evaluations of the same samples, but data.augment changes them each "
            "time; remove it, or choose another strategy"
        )
    if recipe.network.output != "linear" and not _outputs_are_values(recipe):
        raise ValueError(
            f'network.output = "{recipe.network.output}" requires layers and objective.loss = "squared_error"'
        )
    if recipe.network.output_scale != 1 and (recipe.network.stacks or recipe.network.module):
        raise ValueError("network.output_scale is for a network of layers; remove it")
    if not isinstance(recipe.objective, recipe.training.objective):
        raise ValueError(f"a {type(recipe.objective).__name__} is not an objective of strategy {strategy}")
    if isinstance(recipe.training, StackTraining):
        _check_stacks(recipe, recipe.training)
    else:
        _check_supervised(recipe)
    if isinstance(recipe.training, BatchTraining):
        _check_batch(recipe, recipe.training)
    elif isinstance(recipe.training, DownpourTraining):
        _check_downpour(recipe, recipe.training)
    elif recipe.cluster != Cluster():
        raise ValueError(f"[cluster] is for strategies batch and downpour; {strategy} uses [mesh] grid")
    if recipe.mesh.microbatches > 1:
        _check_microbatches(recipe)
    _check_replicas(recipe)
    if recipe.network.finetune and recipe.network.backbone is None:
        raise ValueError("network.finetune needs network.backbone, a run of stacks to fine-tune")


def _check_replicas(recipe: Tables) -> None:
    mesh, training = recipe.mesh, recipe.training
    if mesh.replicas == 1:
        return
    if not isinstance(training, SupervisedTraining):
        more = "cluster.workers" if training.strategy in ("batch", "downpour") else "mesh.grid"
        raise ValueError(
            f"mesh.replicas is for strategy supervised; strategy {training.strategy} uses {more}"
        )
    if training.batch_size < mesh.replicas:
        raise ValueError(
            f"training.batch_size is {training.batch_size}, but each of {mesh.replicas} mesh.replicas needs "
            "at least one sample of a batch; use a larger batch_size, or fewer replicas"
        )
    if mesh.grid == "auto":
        raise ValueError(
            "mesh.grid = auto is not possible with mesh.replicas; give rows and columns, such as 1x2, or "
            "remove it"
        )


def _outputs_are_values(recipe: Tables) -> bool:
    return (
        isinstance(recipe.objective, LossObjective)
        and recipe.objective.loss == "squared_error"
        and recipe.network.module is None
    )


def _check_stacks(recipe: Tables, training: StackTraining) -> None:
    network, strategy = recipe.network, training.strategy
    if recipe.offloaded:
        if recipe.mesh.grid not in (None, "1x1"):
            raise ValueError(
                'training.offload = "disk" needs a single process; set mesh.grid=none or '
                "training.offload=none"
            )
        if training.device not in ("cpu", AUTO):
            raise ValueError('training.offload = "disk" computes on the CPU; set training.device to cpu')
    if not network.stacks:
        raise ValueError(f"strategy {strategy} trains [[network.stacks]]; give at least one")
    if network.layers or network.backbone is not None or network.module is not None:
        raise ValueError(
            f"strategy {strategy} takes [[network.stacks]] only; layers, backbone and module belong "
            "to strategy supervised"
        )
    if isinstance(recipe.data, GivenData):
        raise ValueError(
            'data.type = "dataset" belongs to network.module; stacks learn from images, vectors or frames'
        )


def _check_supervised(recipe: Tables) -> None:
    network, data = recipe.network, recipe.data
    strategy = recipe.training.strategy
    if network.stacks:
        raise ValueError(
            f"strategy {strategy} trains [[network.layers]]; train stacks in a separate run "
            "and name that run in network.backbone"
        )
    if network.module is not None:
        if network.layers or network.backbone is not None:
            raise ValueError("network.module replaces layers and backbone; remove these")
        return
    if isinstance(data, GivenData):
        raise ValueError('data.type = "dataset" belongs to network.module; name the module there')
    if recipe.loss == "custom":
        raise ValueError('objective.loss = "custom" belongs to network.module; name a loss')
    if isinstance(data, TableData) and data.store is None and data.target is None:
        raise ValueError(f"strategy {strategy} needs labels; set data.target to the column to predict")
    if data.store is None and data.labels == "none":
        choices = "file" if data.type == "vectors" or _has_scheme(data.source) else "folders or file"
        raise ValueError(f"strategy {strategy} needs labels; set data.labels to {choices}")


def _check_batch(recipe: Tables, training: BatchTraining) -> None:
    """Refuse settings that change the objective between evaluations, or that do not exist for batch."""
    if recipe.cluster.alone and recipe.cluster.servers > 1:
        raise ValueError(
            f"cluster.servers is {recipe.cluster.servers}, but one worker needs no servers; give "
            "cluster.workers, or remove servers"
        )
    for number, layer in enumerate(recipe.network.layers, 1):
        if layer.type == "dropout":
            raise ValueError(
                f"layer {number} is dropout, which is random in each evaluation, but strategy batch "
                "compares evaluations; remove it"
            )
        if layer.type == "normalisation" and layer.kind == "batch":
            raise ValueError(
                f"layer {number} normalises over a batch, but the objective of strategy batch is a sum "
                'over samples; remove it, or set kind to "contrast"'
            )
    if recipe.mesh.grid == "auto":
        raise ValueError(
            "mesh.grid = auto is not possible for workers of strategy batch; give rows and columns, such "
            "as 1x2, or remove it"
        )
    if recipe.cluster.processes > 1:
        raise ValueError(
            "cluster.processes is for replicas of strategy downpour; give more workers, or remove it"
        )
    if recipe.worker_grid is not None and training.deterministic:
        raise ValueError(
            "training.deterministic needs sums in the order of one process, but ranks of a grid use "
            "another order; remove one of the two"
        )
    if recipe.network.backbone is not None:
        raise ValueError("strategy batch trains layers on the samples themselves; remove network.backbone")
    if recipe.cluster.replay_run is not None and not training.chooses:
        raise ValueError(
            "cluster.replay_run repeats evaluations that ended early; set training.sample_fraction or "
            "training.deadline_factor as in that run"
        )
    if training.deadline_factor is not None and recipe.alone:
        raise ValueError("training.deadline_factor is for a cluster; give cluster.workers, or remove it")
    if training.device not in ("cpu", AUTO):
        _check_workers_device(recipe, training.device)


def _check_downpour(recipe: Tables, training: DownpourTraining) -> None:
    """Refuse settings that replicas cannot share, or that are not for them."""
    for number, layer in enumerate(recipe.network.layers, 1):
        if layer.type == "normalisation" and layer.kind == "batch":
            raise ValueError(
                f"layer {number} normalises over a batch, but replicas would have different means; "
                'remove it, or set kind to "contrast"'
            )
    kinds = [*(layer.type for layer in recipe.network.layers), "linear"]
    for number in (*training.factor_layers, *training.gradient_layers):
        if number > len(kinds) or kinds[number - 1] not in training.factored_layers:
            able = [str(at) for at, kind in enumerate(kinds, 1) if kind in training.factored_layers]
            raise ValueError(
                f"layer {number} is not fully connected or local, so its weights cannot be sent as "
                f"factors; layers that can: {', '.join(able)}"
            )
    if recipe.network.module is not None:
        for name in ("unit_norm", "factor_layers", "gradient_layers"):
            if getattr(training, name):
                raise ValueError(
                    f"training.{name} is for [[network.layers]], not for a Python module; remove it"
                )
        if recipe.worker_grid is not None:
            raise ValueError("a Python module cannot be partitioned over ranks here; remove mesh.grid")
    if recipe.network.backbone is not None:
        raise ValueError("strategy downpour trains layers on the samples themselves; remove network.backbone")
    if recipe.mesh.grid == "auto":
        raise ValueError(
            "mesh.grid = auto is not possible for replicas of strategy downpour; give rows and columns, "
            "such as 1x2, or remove it"
        )
    if recipe.cluster.processes > 1 and recipe.worker_grid is not None:
        raise ValueError(
            "a replica is either several processes that share the weights, or ranks that partition the "
            "network; remove cluster.processes or mesh.grid"
        )
    if recipe.cluster.processes > 1 and (training.threads or 1) > 1:
        raise ValueError(
            "each process of cluster.processes computes with one thread; remove training.threads, or "
            "give more processes"
        )
    if training.local_steps is not None and training.pull_every == 1 and recipe.cluster.processes == 1:
        raise ValueError(
            "training.local_steps is for the steps between two pulls, but the replica pulls after each step; "
            "remove it, or set training.pull_every above 1"
        )
    if training.clip_norm is not None and recipe.worker_grid is not None:
        raise ValueError(
            "training.clip_norm bounds the norm of the whole gradient, which no rank of a grid has; remove "
            "training.clip_norm or mesh.grid"
        )
    if training.wants_factors and (recipe.cluster.processes > 1 or recipe.worker_grid is not None):
        raise ValueError(
            "a replica of several processes or ranks sums whole gradients and cannot push factors; "
            "remove training.push_format and training.factor_layers, or cluster.processes and mesh.grid"
        )
    if training.device not in ("cpu", AUTO):
        _check_workers_device(recipe, training.device)
    check_copies(recipe.cluster, training, has_grid=recipe.worker_grid is not None)
    own = {
        *("workers", "processes", "servers", "replication_factor", "replication_factor_min", "topology"),
        *("flush_seconds", "ray_address", "ports"),
        *("spread_servers", "encrypt", "heartbeat_timeout", "metrics_address", "controllers", "max_buckets"),
    }
    if recipe.cluster.controllers is not None:
        own.add("unavailable_timeout")
    for name in Cluster.model_fields.keys() - own:
        if getattr(recipe.cluster, name) != getattr(Cluster(), name):
            raise ValueError(f"cluster.{name} is for strategy batch; remove it")


def _check_workers_device(recipe: Tables, device: str) -> None:
    """Refuse devices on which replicas or workers cannot compute."""
    strategy = recipe.training.strategy
    who = "replica" if strategy == "downpour" else "worker"
    if re.fullmatch("cuda(:(0|[1-9][0-9]?))?", device) is None:
        raise ValueError(
            f'training.device is "{device}", but strategy {strategy} computes on the CPU or on CUDA '
            'devices; set it to "cpu", to "cuda", or to a device such as "cuda:0"'
        )
    if recipe.cluster.processes > 1 or recipe.worker_grid is not None:
        raise ValueError(
            f"the processes or ranks of a {who} share CPU memory; set training.device to "
            '"cpu", or remove cluster.processes and mesh.grid'
        )
    if recipe.cluster.ray_address is not None:
        raise ValueError(
            f"{who}s that Ray starts have no CUDA devices; set training.device to "
            '"cpu", or remove cluster.ray_address'
        )


def _check_microbatches(recipe: Tables) -> None:
    if recipe.worker_grid is None:
        raise ValueError(
            "mesh.microbatches is for the ranks of a mesh.grid of strategies batch and downpour; remove it"
        )
    if any(layer.type == "dropout" for layer in recipe.network.layers):
        raise ValueError(
            "with mesh.microbatches, ranks would draw dropout in different orders; remove one of the two"
        )


def _has_scheme(source: str | None) -> bool:
    """True for a source `scheme:...` of another package; such sources bring their own labels."""
    scheme, colon, _ = (source or "").partition(":")
    return bool(colon) and scheme.isidentifier() and scheme != "builtin"
