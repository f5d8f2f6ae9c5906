"""Restored networks: from a run's directory to its trained network.

Knows: which checkpoint counts, how a network is rebuilt and filled, what must agree for that. Does not know:
training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from cotswold import recipe as recipes
from cotswold.checkpoint import Checkpoint, CheckpointManager
from cotswold.data import differing_fields
from cotswold.errors import MachineError, RecipeError, RunError, StoreError
from cotswold.geometry import StackGeometry
from cotswold.host import require_memory
from cotswold.kernels.machine.cuda_devices import cuda_device_count
from cotswold.nn import StackNetwork
from cotswold.recipe import Recipe
from cotswold.recipe.schema import BatchTraining, DownpourTraining, GreedyTraining, SupervisedTraining
from cotswold.recipe.schema.training import SharedTraining
from cotswold.run import RunDirectory
from cotswold.training.data.sample_spec import SampleSpec
from cotswold.training.data.stores import recipe_preparation
from cotswold.training.jobs.config_diff import check_recipe
from cotswold.training.jobs.memory_estimate import filter_bytes, training_bytes
from cotswold.training.models import (
    LayerNetwork,
    build_layers,
    build_stacks,
    layers_bytes,
    network_tensors,
)
from cotswold.training.trainers.position import position_from

_Network = TypeVar("_Network", StackNetwork, LayerNetwork)


@dataclass(frozen=True)
class Trained(Generic[_Network]):
    """A network restored from a checkpoint of a run, and the checkpoint's step.

    Args:
        network: The network, in evaluation mode and without gradients.
        step: The step of the checkpoint.
        identity: The identity of the checkpoint's run.
        run: The directory of the run.
        state: The state of the checkpoint.
    """

    network: _Network
    step: int
    identity: str
    """The identity of the checkpoint's run."""
    run: RunDirectory
    state: Mapping[str, object]

    @cached_property
    def prepared(self) -> SampleSpec:
        """The preparation that samples need, from the checkpoint; raises CheckpointError if it is damaged."""
        return SampleSpec.from_state(self.state)


def untrained_phases(recipe: Recipe, state: Mapping[str, object]) -> int:
    """Return the number of phases without a training step in a checkpoint's state.

    Args:
        recipe: The recipe of the run.
        state: The state of the checkpoint.

    Returns:
        The number of stacks of a greedy run; for other runs 1 before the first step, then 0.
    """
    position = position_from(state)
    phases = len(recipe.network.stacks) if isinstance(recipe.training, GreedyTraining) else 1
    return max(phases - position.phase - (position.step > 0), 0)


def trained_stacks(run: RunDirectory) -> Trained[StackNetwork]:
    """Return the stacks of a run, and the preparation of their images, from the newest valid checkpoint.

    Args:
        run: The directory of the run.

    Returns:
        The network in evaluation mode and the checkpoint's step.

    Raises:
        RunError: If the run has no checkpoint, or no stacks.
        MemoryLimitError: Before the allocation, if the filters do not fit in memory.
    """
    recipe = recipes.load(run.recipe)
    if not recipe.network.stacks:
        raise RunError(f"{run.path} is a run of layers; use a run of stacks (greedy or joint)")
    check_device(recipe.training.device)
    if torch.device(recipe.training.device).type == "cpu":
        require_memory(
            filter_bytes(recipe),
            f"loading {run.path}, whose filters must all be in memory,",
            "use a machine with more memory; training.offload is for training only",
        )
    network = build_stacks(recipe)
    checkpoint = newest(run, recipe, network)
    return Trained(_in_eval_mode(network), checkpoint.step, checkpoint.identity, run, checkpoint.state)


def load_stacks(run: RunDirectory) -> tuple[StackNetwork, int]:
    """Return the stacks of a run from its newest valid checkpoint, and the step.

    Args:
        run: The directory of the run.

    Returns:
        The network in evaluation mode, and the step of the checkpoint.

    Raises:
        RunError: If the run has no checkpoint, or no stacks.
        MemoryLimitError: Before the allocation, if the filters do not fit in memory.
    """
    trained = trained_stacks(run)
    return trained.network, trained.step


def random_stacks(recipe: Recipe, images: Tensor) -> StackNetwork:
    """Return the untrained network: random filters, with gains and α from some prepared images.

    Args:
        recipe: The recipe of the stacks.
        images: Prepared images ``(channel, y, x, image)``.

    Returns:
        The network in evaluation mode, on the recipe's device.
    """
    images = images.to(recipe.training.device)
    network = build_stacks(recipe).eval().requires_grad_(False)
    for stack in network.stacks:
        stack.calibrate(images)
        images = stack(images)
    return network


def trained_layers(run: RunDirectory) -> Trained[LayerNetwork]:
    """Return a supervised run's network, with its classes and preparation, from the best checkpoint.

    If the run has no best checkpoint, the newest valid one counts.

    Args:
        run: The directory of the run.

    Returns:
        The network in evaluation mode and the checkpoint's step.

    Raises:
        RunError: If the run has no checkpoint, or is not a supervised run of a recipe.
    """
    recipe = recipes.load(run.recipe)
    if recipe.network.stacks:
        raise RunError(f"{run.path} is a run of stacks; use a supervised run")
    if recipe.network.module is not None:
        raise RunError(
            f"{run.path} trained {recipe.network.module}, a module of a Python program; load it there with "
            "cotswold.Run(directory).load(module), then call it"
        )
    check_device(recipe.training.device)
    filled: dict[Path, LayerNetwork] = {}

    def take(checkpoint: Checkpoint) -> None:
        outputs = SampleSpec.from_state(checkpoint.state).outputs
        network = filled[checkpoint.path] = supervised_network(recipe, outputs)
        _take(recipe, network, checkpoint)

    best = CheckpointManager(run.best, identity=run.identity).latest(take).checkpoint
    checkpoint = _newest(run, take) if best is None else best
    network = _in_eval_mode(filled[checkpoint.path])
    if isinstance(recipe.training, SupervisedTraining):
        network.precision = recipe.training.precision
    return Trained(network, checkpoint.step, checkpoint.identity, run, checkpoint.state)


def _in_eval_mode(network: _Network) -> _Network:
    """Return the network in evaluation mode, without gradients."""
    network.eval().requires_grad_(False)
    return network


def supervised_network(recipe: Recipe, outputs: int) -> LayerNetwork:
    """Return the layers of a recipe, on the stacks of the run or recipe in `network.backbone`, if any."""
    backbone = backbone_of(recipe)
    return build_layers(recipe, outputs, None if backbone is None else backbone.stacks(recipe))


@dataclass(frozen=True)
class Backbone:
    """The stacks that `network.backbone` names: trained by a run, or the untrained ones of a recipe."""

    recipe: Recipe
    run: RunDirectory | None = None

    @property
    def name(self) -> str:
        """The name of the stacks' run or recipe in errors."""
        return f"the recipe {self.recipe.name}" if self.run is None else str(self.run.path)

    def stacks(self, recipe: Recipe) -> StackNetwork:
        """Return the stacks for ``recipe``, whose seed initialises untrained filters."""
        if self.run is not None:
            return load_stacks(self.run)[0]
        training = self.recipe.training.model_copy(
            update={"seed": recipe.training.seed, "device": recipe.training.device}
        )
        return build_stacks(self.recipe.model_copy(update={"training": training}))


def backbone_of(recipe: Recipe) -> Backbone | None:
    """Return the stacks that `network.backbone` names; raises RunError if they do not fit the recipe."""
    if recipe.network.backbone is None:
        return None
    named = recipes.expand(recipe.network.backbone)
    if not Path(named).is_dir() and (named in recipes.shipped_names() or named.endswith(".toml")):
        backbone = Backbone(recipes.load(named))
    else:
        run = RunDirectory.open(Path(named))
        backbone = Backbone(recipes.load(run.recipe), run)
    made, wanted = backbone.recipe, recipe.input
    if not made.network.stacks:
        kind = "recipe" if backbone.run is None else "run"
        raise RunError(f"network.backbone names {backbone.name}, a {kind} of layers; name a {kind} of stacks")
    if made.input != wanted:
        raise RunError(
            f"the stacks of {backbone.name} read maps of {made.input}, but this recipe's images are "
            f"{wanted}; give data.size and data.colour the same values"
        )
    return backbone


def check_preparation(recipe: Recipe, backbone: Backbone) -> None:
    """Raise RunError if the images of ``backbone`` were prepared differently from this recipe's.

    If the separately prepared store of ``backbone`` is missing, its preparation is unknown, and the check
    passes.
    """
    try:
        there, here = recipe_preparation(backbone.recipe.data), recipe_preparation(recipe.data)
    except StoreError:
        return
    found = differing_fields(there, here)
    if found:
        shown = [f"data.{name} ({one} there, {other} here)" for name, one, other in found]
        kind = "need" if backbone.run is None else "used"
        raise RunError(
            f"the stacks of {backbone.name} {kind} images that were prepared differently: "
            f"{', '.join(shown)}; give this recipe the same values"
        )


def check_device(name: str) -> None:
    """Raise RecipeError for a device unknown to torch, MachineError for one missing on this machine."""
    try:
        known = torch.device(name).type not in ("meta", "fake")
    except RuntimeError:
        known = False
    if not known:
        raise RecipeError(f'training.device = "{name}" is not a device; use one such as "cpu" or "cuda:0"')
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, ImportError) as error:  # torch's error depends on the device
        raise _not_on_this_machine(name) from error


def check_training_device(training: SharedTraining) -> None:
    """Check the device of a run that is about to train.

    Only other processes use the device of replicas and of workers. Their CUDA devices are merely counted
    here: a fork of a process that has used CUDA cannot use it.
    """
    if not isinstance(training, BatchTraining | DownpourTraining):
        check_device(training.device)
        return
    device = torch.device(training.device)  # the recipe's schema has validated it
    if device.type == "cuda" and (device.index or 0) >= cuda_device_count():
        raise _not_on_this_machine(training.device)


def _not_on_this_machine(name: str) -> MachineError:
    return MachineError(
        f'training.device = "{name}" is not available on this machine; use another, such as "cpu"'
    )


def geometries_below(recipe: Recipe) -> list[StackGeometry]:
    """Return the geometries of the stacks below the layers of a recipe; empty without `network.backbone`."""
    backbone = backbone_of(recipe)
    return [] if backbone is None else backbone.recipe.stack_geometries()


def needed_bytes(recipe: Recipe, classes: int, batch: int) -> int:
    """Return the bytes for training the recipe with this batch size; raises the errors of building the
    network.
    """
    if recipe.network.stacks:
        return training_bytes(recipe, batch)
    return layers_bytes(recipe, classes, batch, geometries_below(recipe))


def newest(
    run: RunDirectory, recipe: Recipe, network: StackNetwork | LayerNetwork | None = None
) -> Checkpoint:
    """Return the newest valid checkpoint of a run, and fill ``network`` from it if given.

    Raises RunError if there is no checkpoint, or only one of another run or recipe.
    """
    return _newest(run, partial(_take, recipe, network))


def _newest(run: RunDirectory, take: Callable[[Checkpoint], None]) -> Checkpoint:
    checkpoint = CheckpointManager(run.checkpoints, identity=run.identity).latest(take).checkpoint
    if checkpoint is None:
        raise RunError(
            f"{run.path} has no checkpoint yet; train it first, or continue it with --resume (Python: "
            "resume=True)"
        )
    return checkpoint


def _take(recipe: Recipe, network: StackNetwork | LayerNetwork | None, checkpoint: Checkpoint) -> None:
    check_recipe(checkpoint, recipe)
    if network is not None:
        for name, tensor in network_tensors(network).items():
            checkpoint.read_into(name, tensor)
