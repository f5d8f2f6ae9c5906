"""From a run's directory to its network.

Knows: which checkpoint counts, how a network is rebuilt and filled. Does not know: training.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from cotswold import recipe as recipes
from cotswold.data import Store
from cotswold.errors import RunError
from cotswold.geometry import StackGeometry
from cotswold.nn import StackNetwork
from cotswold.recipe import Recipe
from cotswold.run import Checkpoint, Checkpoints, RunDirectory
from cotswold.training.budget import training_bytes
from cotswold.training.networks import (
    LayerNetwork,
    build_layers,
    build_stacks,
    layers_bytes,
    network_tensors,
)
from cotswold.training.pictures import read_maps


def load_stacks(run: RunDirectory) -> tuple[StackNetwork, int]:
    """The stacks of a run as its newest good checkpoint has them, and its step; raises RunError if there
    is none."""
    recipe = recipes.load(run.recipe)
    if not recipe.network.stacks:
        raise RunError(f"{run.path} is a run of layers; a run of stacks (greedy or joint) is needed here")
    network, checkpoint = build_stacks(recipe), newest(run, recipe)
    _fill(network, checkpoint)
    return network.eval().requires_grad_(False), checkpoint.step


def random_stacks(recipe: Recipe, store: Store) -> StackNetwork:
    """The network before it learnt: random filters, gains and α from the training pictures."""
    pictures = read_maps(store, "train", 0, min(recipe.training.batch, store.splits["train"]))
    pictures = pictures.to(recipe.training.device)
    network = build_stacks(recipe).eval().requires_grad_(False)
    for stack in network.stacks:
        stack.calibrate(pictures)
        pictures = stack(pictures)
    return network


def load_layers(run: RunDirectory, classes: int) -> tuple[LayerNetwork, int]:
    """A supervised run's network as its best checkpoint has it, and its step; raises RunError if there is
    none."""
    recipe = recipes.load(run.recipe)
    if recipe.network.stacks:
        raise RunError(f"{run.path} is a run of stacks; a supervised run is needed here")
    network = supervised_network(recipe, classes)
    best = Checkpoints(run.best, identity=recipe_identity(recipe)).latest().checkpoint
    checkpoint = best if best is not None else newest(run, recipe)
    _fill(network, checkpoint)
    return network.eval().requires_grad_(False), checkpoint.step


def supervised_network(recipe: Recipe, classes: int) -> LayerNetwork:
    """The layers of a recipe, on the trained stacks of the run that `network.start` names."""
    start = start_of(recipe)
    return build_layers(recipe, classes, None if start is None else load_stacks(start)[0])


def start_of(recipe: Recipe) -> RunDirectory | None:
    """The run that `network.start` names; raises RunError where its stacks do not fit."""
    if recipe.network.start is None:
        return None
    start = RunDirectory.open(Path(recipes.expand(recipe.network.start)))
    made, wanted = recipes.load(start.recipe), recipe.input
    if not made.network.stacks:
        raise RunError(f"network.start names {start.path}, a run of layers; name a run of stacks")
    if made.input != wanted:
        raise RunError(
            f"the stacks of {start.path} read maps of {made.input}, this recipe's pictures are {wanted}; "
            "give data.size and data.colour the same values"
        )
    return start


def geometries_below(recipe: Recipe) -> list[StackGeometry]:
    """The geometries of the stacks that the layers of a recipe stand on; none without `network.start`."""
    start = start_of(recipe)
    return [] if start is None else recipes.load(start.recipe).stack_geometries()


def needed_bytes(recipe: Recipe, classes: int, batch: int) -> int:
    """Bytes that training the recipe takes with mini-batches of this size; raises what building it would."""
    if recipe.network.stacks:
        return training_bytes(recipe, batch)
    return layers_bytes(recipe, classes, batch, geometries_below(recipe))


def recipe_identity(recipe: Recipe) -> str:
    """A hash of what a checkpoint depends on: everything in a recipe but money and tests."""
    return hashlib.sha256(recipe.model_dump_json(exclude={"price", "evaluate"}).encode()).hexdigest()[:16]


def newest(run: RunDirectory, recipe: Recipe) -> Checkpoint:
    """The newest good checkpoint of a run; raises RunError where there is none yet."""
    checkpoint = Checkpoints(run.checkpoints, identity=recipe_identity(recipe)).latest().checkpoint
    if checkpoint is None:
        raise RunError(f"{run.path} has no checkpoint yet; train it first, or go on with --resume")
    return checkpoint


def _fill(network: StackNetwork | LayerNetwork, checkpoint: Checkpoint) -> None:
    for name, tensor in network_tensors(network).items():
        checkpoint.read_into(name, tensor)
