"""From a run's directory to its network.

Knows: which checkpoint counts, how a network is rebuilt and filled, what must agree for that. Does not
know: training.
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
from cotswold.data import differing
from cotswold.errors import MachineError, RecipeError, RunError, StoreError
from cotswold.geometry import StackGeometry
from cotswold.host import require_memory
from cotswold.host.cuda_devices import cuda_device_count
from cotswold.nn import StackNetwork
from cotswold.recipe import Recipe
from cotswold.recipe.schema import DownpourTraining, GreedyTraining
from cotswold.recipe.schema.training import SharedTraining
from cotswold.run import RunDirectory
from cotswold.training.data.sample_spec import SampleSpec
from cotswold.training.data.stores import made_by
from cotswold.training.jobs.config_diff import check_recipe
from cotswold.training.jobs.memory_estimate import filter_bytes, training_bytes
from cotswold.training.jobs.run_store import store_of
from cotswold.training.models import (
    LayerNetwork,
    build_layers,
    build_stacks,
    layers_bytes,
    network_tensors,
)
from cotswold.training.trainers.sync import position_from

_Network = TypeVar("_Network", StackNetwork, LayerNetwork)


@dataclass(frozen=True)
class Trained(Generic[_Network]):
    """A network as a checkpoint of a run has it, and the checkpoint's step."""

    network: _Network
    step: int
    identity: str
    """Whose the checkpoint is."""
    run: RunDirectory
    state: Mapping[str, object]
    stores: Path | None

    @cached_property
    def prepared(self) -> SampleSpec:
        """How pictures must be prepared for it, as the checkpoint says.

        Checkpoints that say nothing of it are old ones; their run's store is then looked for, in ``stores``
        if given; raises as `store_of`.
        """
        return _prepared(self.run, self.state, self.stores)


def not_begun(recipe: Recipe, state: Mapping[str, object]) -> int:
    """Phases (stacks, of a greedy run) that had not begun to learn when a checkpoint had this state."""
    position = position_from(state)
    phases = len(recipe.network.stacks) if isinstance(recipe.training, GreedyTraining) else 1
    return max(phases - position.phase - (position.step > 0), 0)


def trained_stacks(run: RunDirectory, stores: Path | None = None) -> Trained[StackNetwork]:
    """The stacks of a run, and how to prepare pictures for them, from its newest good checkpoint alone.

    Raises RunError where there is none, MemoryLimitError before anything is built where the filters do not
    fit.
    """
    recipe = recipes.load(run.recipe)
    if not recipe.network.stacks:
        raise RunError(f"{run.path} is a run of layers; a run of stacks (greedy or joint) is needed here")
    check_device(recipe.training.device)
    if torch.device(recipe.training.device).type == "cpu":
        require_memory(
            filter_bytes(recipe),
            f"looking at {run.path}, whose filters must all be in memory,",
            "do that on a machine with more; training.offload is for training alone",
        )
    network = build_stacks(recipe)
    checkpoint = newest(run, recipe, network)
    return Trained(_at_rest(network), checkpoint.step, checkpoint.identity, run, checkpoint.state, stores)


def load_stacks(run: RunDirectory) -> tuple[StackNetwork, int]:
    """The stacks of a run as its newest good checkpoint has them, and its step; raises as
    `trained_stacks`."""
    trained = trained_stacks(run)
    return trained.network, trained.step


def _prepared(run: RunDirectory, state: Mapping[str, object], stores: Path | None) -> SampleSpec:
    found = SampleSpec.from_state(state)
    return SampleSpec.of(store_of(run, stores=stores)) if found is None else found


def random_stacks(recipe: Recipe, pictures: Tensor) -> StackNetwork:
    """The network before it learnt: random filters, gains and α from some prepared pictures."""
    pictures = pictures.to(recipe.training.device)
    network = build_stacks(recipe).eval().requires_grad_(False)
    for stack in network.stacks:
        stack.calibrate(pictures)
        pictures = stack(pictures)
    return network


def trained_layers(run: RunDirectory, stores: Path | None = None) -> Trained[LayerNetwork]:
    """A supervised run's network, its classes and how to prepare pictures for it, from its best checkpoint
    alone; else as `trained_stacks`."""
    recipe = recipes.load(run.recipe)
    if recipe.network.stacks:
        raise RunError(f"{run.path} is a run of stacks; a supervised run is needed here")
    if recipe.network.module is not None:
        raise RunError(
            f"{run.path} has trained {recipe.network.module}, a module of a Python program; fill it there by "
            "cotswold.Run(directory).load(module), and call it"
        )
    check_device(recipe.training.device)
    filled: dict[Path, LayerNetwork] = {}

    def take(checkpoint: Checkpoint) -> None:
        outputs = _prepared(run, checkpoint.state, stores).outputs
        network = filled[checkpoint.path] = supervised_network(recipe, outputs)
        _take(recipe, network, checkpoint)

    best = CheckpointManager(run.best, identity=run.identity).latest(take).checkpoint
    checkpoint = _newest(run, take) if best is None else best
    network = _at_rest(filled[checkpoint.path])
    return Trained(network, checkpoint.step, checkpoint.identity, run, checkpoint.state, stores)


def _at_rest(network: _Network) -> _Network:
    """A network that is looked at and not trained."""
    network.eval().requires_grad_(False)
    return network


def supervised_network(recipe: Recipe, outputs: int) -> LayerNetwork:
    """The layers of a recipe, on the trained stacks of the run that `network.start` names, or on the random
    ones of the recipe that it names."""
    start = start_of(recipe)
    return build_layers(recipe, outputs, None if start is None else start.stacks(recipe))


@dataclass(frozen=True)
class Start:
    """What `network.start` names: the stacks of a recipe, as a run has trained them, or none has."""

    made: Recipe
    run: RunDirectory | None = None

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"the recipe {self.made.name}" if self.run is None else str(self.run.path)

    def stacks(self, recipe: Recipe) -> StackNetwork:
        """The stacks for ``recipe``, whose seed random filters have."""
        if self.run is not None:
            return load_stacks(self.run)[0]
        training = self.made.training.model_copy(
            update={"seed": recipe.training.seed, "device": recipe.training.device}
        )
        return build_stacks(self.made.model_copy(update={"training": training}))


def start_of(recipe: Recipe) -> Start | None:
    """What `network.start` names; raises RunError where its stacks do not fit."""
    if recipe.network.start is None:
        return None
    named = recipes.expand(recipe.network.start)
    if not Path(named).is_dir() and (named in recipes.shipped() or named.endswith(".toml")):
        start = Start(recipes.load(named))
    else:
        run = RunDirectory.open(Path(named))
        start = Start(recipes.load(run.recipe), run)
    made, wanted = start.made, recipe.input
    if not made.network.stacks:
        kind = "recipe" if start.run is None else "run"
        raise RunError(f"network.start names {start.name}, a {kind} of layers; name a {kind} of stacks")
    if made.input != wanted:
        raise RunError(
            f"the stacks of {start.name} read maps of {made.input}, this recipe's pictures are {wanted}; "
            "give data.size and data.colour the same values"
        )
    return start


def check_preparation(recipe: Recipe, start: Start) -> None:
    """Raise RunError where the pictures of ``start`` were prepared otherwise than this recipe's.

    Where the store of ``start`` was prepared apart and is gone, nobody knows how.
    """
    try:
        there, here = made_by(start.made.data), made_by(recipe.data)
    except StoreError:
        return
    found = differing(there, here)
    if found:
        shown = [f"data.{name} ({one} there, {other} here)" for name, one, other in found]
        kind = "are for" if start.run is None else "learnt from"
        raise RunError(
            f"the stacks of {start.name} {kind} pictures that were prepared otherwise: "
            f"{', '.join(shown)}; give this recipe the same values"
        )


def check_device(name: str) -> None:
    """Raise RecipeError for a device that torch does not know, MachineError for one that is not here."""
    try:
        known = torch.device(name).type not in ("meta", "fake")
    except RuntimeError:
        known = False
    if not known:
        raise RecipeError(f'training.device = "{name}" is no device; use one such as "cpu" or "cuda:0"')
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, ImportError) as error:  # what torch raises, by kind of device
        raise _not_here(name) from error


def check_training_device(training: SharedTraining) -> None:
    """As `check_device`, for the device of a run that is to begin or go on.

    That of replicas is used by other processes alone. CUDA devices are only counted for them: a fork of a
    process that has used CUDA cannot.
    """
    if not isinstance(training, DownpourTraining):
        check_device(training.device)
        return
    device = torch.device(training.device)  # the recipe's schema has looked at it
    if device.type == "cuda" and (device.index or 0) >= cuda_device_count():
        raise _not_here(training.device)


def _not_here(name: str) -> MachineError:
    return MachineError(
        f'training.device = "{name}" is not to be had on this machine; use another, such as "cpu"'
    )


def geometries_below(recipe: Recipe) -> list[StackGeometry]:
    """The geometries of the stacks that the layers of a recipe stand on; none without `network.start`."""
    start = start_of(recipe)
    return [] if start is None else start.made.stack_geometries()


def needed_bytes(recipe: Recipe, classes: int, batch: int) -> int:
    """Bytes that training the recipe takes with mini-batches of this size; raises what building it would."""
    if recipe.network.stacks:
        return training_bytes(recipe, batch)
    return layers_bytes(recipe, classes, batch, geometries_below(recipe))


def newest(
    run: RunDirectory, recipe: Recipe, network: StackNetwork | LayerNetwork | None = None
) -> Checkpoint:
    """The newest good checkpoint of a run, with which ``network`` is filled where one is given.

    Raises RunError where there is none yet, or where it is of another run or recipe.
    """
    return _newest(run, partial(_take, recipe, network))


def _newest(run: RunDirectory, take: Callable[[Checkpoint], None]) -> Checkpoint:
    checkpoint = CheckpointManager(run.checkpoints, identity=run.identity).latest(take).checkpoint
    if checkpoint is None:
        raise RunError(
            f"{run.path} has no checkpoint yet; train it first, or go on with --resume (Python: resume=True)"
        )
    return checkpoint


def _take(recipe: Recipe, network: StackNetwork | LayerNetwork | None, checkpoint: Checkpoint) -> None:
    check_recipe(checkpoint, recipe)
    if network is not None:
        for name, tensor in network_tensors(network).items():
            checkpoint.read_into(name, tensor)
