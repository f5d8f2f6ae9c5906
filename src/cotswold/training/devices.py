"""The device of a run whose recipe leaves the choice: `training.device = "auto"`.

Knows: devices of this machine, strategies that prefer the CPU. Does not know: how anything is
trained.
"""

from __future__ import annotations

import torch

from cotswold.kernels.machine.cuda_devices import cuda_device_count
from cotswold.recipe import Recipe
from cotswold.recipe.schema import BatchTraining, DownpourTraining
from cotswold.recipe.schema.strategy import AUTO


def with_chosen_device(recipe: Recipe) -> Recipe:
    """Return the recipe with a device of this machine in place of ``auto``: CUDA, else MPS, else the CPU."""
    if recipe.training.device != AUTO:
        return recipe
    training = recipe.training.model_copy(update={"device": _chosen(recipe)})
    return recipe.model_copy(update={"training": training})


def with_cpu_device(recipe: Recipe) -> Recipe:
    """Return the recipe with device "cpu", for building networks.

    Networks are then moved to the device of their process, and random initial values are the same on all
    devices.
    """
    training = recipe.training.model_copy(update={"device": "cpu"})
    return recipe.model_copy(update={"training": training})


def _chosen(recipe: Recipe) -> str:
    training, cluster = recipe.training, recipe.cluster
    if isinstance(training, BatchTraining) or recipe.offloaded:
        return "cpu"
    if isinstance(training, DownpourTraining) and (
        cluster.processes > 1 or cluster.ray_address is not None or recipe.worker_grid is not None
    ):
        return "cpu"
    if cuda_device_count():  # counts without use of a device, which forks could not use any more
        return "cuda"
    if not isinstance(training, DownpourTraining) and torch.backends.mps.is_available():
        return "mps"
    return "cpu"
