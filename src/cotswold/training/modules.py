"""Runs that train a module and a data set that a program gives.

Knows: how a module and a data set take the places of a recipe's layers and a store. Does not know: how they
are trained (`Supervised`), the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from cotswold import recipe as recipes
from cotswold.checkpoint import StateDict, StateValue
from cotswold.errors import CheckpointError, UserError
from cotswold.mesh import partition
from cotswold.recipe import Recipe
from cotswold.recipe.schema import GivenData, LossObjective, Network, SupervisedTraining
from cotswold.run import Metrics, Recorder, RunDirectory, describe_environment
from cotswold.training.datasets import (
    Given,
    Samples,
    loader_of,
    samples_of,
    split,
    training_batches,
    validation_batches,
)
from cotswold.training.job import Job
from cotswold.training.losses import Loss, named_loss, own_loss
from cotswold.training.opening import Resume, agreed, check_started, same_recipe
from cotswold.training.prolonging import asked_for, stages
from cotswold.training.restore import check_device
from cotswold.training.runners.synchronous import Synchronous
from cotswold.training.strategy import Batch
from cotswold.training.supervised import Supervised, supervised_training
from cotswold.training.supervised_on_mesh import SupervisedOnMesh
from cotswold.training.team import SOLO, Team


def open_module_job(
    module: nn.Module,
    dataset: Given,
    *,
    loss: str | Loss,
    directory: str | Path | None = None,
    settings: SupervisedTraining | None = None,
    validation: Given | float | None = None,
    resume: Resume = Resume.NEVER,
    team: Team = SOLO,
) -> ModuleJob:
    """A job that trains any module by the strategy `supervised`, in a new directory or an old one.

    ``dataset`` gives pairs (input, target) of tensors: a map-style or iterable data set, of which mini-
    batches of ``settings.batch_size`` are made, or a DataLoader, which makes its own. ``loss`` takes (output,
    target) and gives a number, mean over samples; or it is a name: `cross_entropy`, `squared`, `logistic`.
    Where targets are classes the accuracy is measured as well. ``validation``: a data set of its own, or the
    fraction of a map-style one that is drawn by the seed and kept for it. The run is called after the
    module's class, and is in `runs/` under that name where no directory is given.

    The module is moved to ``settings.device`` and trained in place; it stays as training leaves it.
    Parameters and buffers, momentum, random states and the place in the data set are in the checkpoints, so
    that a run that is resumed, with a module of the same names and shapes and the same data set, has the bits
    of one that was not stopped. (Random transforms in worker processes or in an iterable data set are drawn
    anew.) More ``settings.epochs`` than before prolong a run.

    FLOPs are those that torch counts in the first step, forward and gradient; operations that it does not
    know count none. With a ``team`` on a mesh every rank calls this with the same module and data set; the
    module is partitioned (`mesh.partition`), and rank 0's FLOPs count for every rank.

    Raises UserError for a module or data set that cannot be trained, RunError for a directory that is taken
    or holds another run, RecipeError for a device or a loss that is none, MachineError for one that is not
    there.
    """
    training = settings or SupervisedTraining(strategy="supervised")
    function = named_loss(loss) if isinstance(loss, str) else own_loss(loss)
    check_device(training.device)
    _check(module)
    samples, held = _split(dataset, validation, training)
    if samples is not None:
        training = training.model_copy(update={"batch_size": samples.batch_size})
    wanted = _recipe(module, dataset, samples, loss, training)
    path = Path("runs") / wanted.name if directory is None else Path(directory)

    def job(run: RunDirectory, recipe: Recipe, resumed: bool, totals: tuple[Any, ...]) -> ModuleJob:
        return ModuleJob(
            run,
            recipe,
            resumed=resumed,
            team=team,
            totals=totals,
            module=module,
            samples=dataset if samples is None else samples,
            validation=held,
            loss=function,
        )

    def opened() -> ModuleJob:
        if not check_started(path, resume):
            run = RunDirectory.create(path, recipes.dump(wanted), describe_environment())
            return job(run, wanted, False, ())
        run = RunDirectory.open(path)
        kept = recipes.load(run.recipe)
        asked, totals = asked_for(wanted, kept, run)
        same_recipe(asked, kept, path)
        return job(run, asked, True, totals)

    def tell(opened: ModuleJob) -> dict[str, object]:
        return {
            "run": str(opened.run.path.absolute()),
            "recipe": recipes.dump(opened.recipe),
            "resumed": opened.resumed,
            "totals": opened.totals,
        }

    def join(found: Mapping[str, Any]) -> ModuleJob:
        recipe = recipes.parse(found["recipe"], "the recipe of rank 0")
        totals = tuple(map(tuple, found["totals"]))
        return job(RunDirectory.open(Path(found["run"])), recipe, bool(found["resumed"]), totals)

    return agreed(team, opened, tell, join)


@dataclass(frozen=True, kw_only=True)
class ModuleJob(Job):
    """A run that trains a program's own module on its own data set."""

    module: nn.Module
    samples: Given | Samples
    validation: Given | Samples | None
    loss: Loss

    def check(self) -> None:
        """What a module needs is not known before it runs."""

    def metadata(self) -> Mapping[str, object]:
        """Nothing beyond the recipe."""
        return {}

    def build(self, recorder: Recorder, open_things: ExitStack, *, fresh: bool) -> Synchronous:
        """Steps in common, of one process or the ranks of a mesh."""
        training = supervised_training(self.recipe)
        device = torch.device(training.device)
        batches = training_batches(self.samples, training.batch_size, training.seed, device)
        validation = validation_batches(self.validation, training.batch_size, device)
        epochs, mesh = stages(self.recipe, self.totals), self.team.mesh
        module = self.module.to(device)
        strategy: Supervised
        if mesh is None:
            strategy = _Module(module, training, self.loss, epochs, batches.epoch_steps, validation)
        else:
            torch.manual_seed(training.seed)  # a partition asks that ranks draw alike
            strategy = _ModuleOnMesh(
                partition(module, mesh),
                training,
                self.loss,
                epochs,
                batches.epoch_steps,
                validation,
                spread=lambda inputs: inputs,  # a partitioned module takes whole batches
            )
            strategy.ranks = mesh.size
        return Synchronous(strategy, batches, recorder, self.team)

    def announce(self, recorder: Recorder, start: Mapping[str, object]) -> None:
        """The start of the run."""
        recorder.event(
            "start",
            **start,
            pictures=self.recipe.data.samples if isinstance(self.recipe.data, GivenData) else None,
            module=self.recipe.network.module,
            notes=[],
        )


class _CountedFlops(Supervised):
    """A network of which nobody has a plan: its FLOPs are counted in the first step, and kept."""

    ranks = 1
    _flops: int | None = None

    @property
    def flops(self) -> int:
        """Of one sample, as counted; 0 before the first step."""
        return self._flops or 0

    def describe(self) -> Mapping[str, object]:
        """The module's children and weights."""
        children = [f"{name}: {type(child).__name__}" for name, child in self.network.named_children()]
        return {
            "stack": "layers",
            "layers": children or [type(self.network).__name__],
            "parameters": self.parameters,
        }

    def train_step(self, batches: Iterator[Batch]) -> Metrics:
        """As `Supervised`; the first one is counted."""
        if self._flops is not None:
            return super().train_step(batches)
        with FlopCounterMode(display=False) as counter:
            metrics = super().train_step(batches)
        self._flops = self.ranks * counter.get_total_flops() // metrics.samples
        return metrics

    def state_dict(self) -> StateDict:
        """As `Supervised`, and the FLOPs."""
        return {**super().state_dict(), "flops": self._flops}

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """As `Supervised`, and the FLOPs."""
        super().load_state_dict(state)
        flops = state["flops"]
        if flops is not None and not isinstance(flops, int):
            raise CheckpointError("the checkpoint does not say how many FLOPs a sample takes")
        self._flops = flops


class _Module(_CountedFlops):
    """A module in one process."""


class _ModuleOnMesh(_CountedFlops, SupervisedOnMesh):
    """A partitioned module."""


def _check(module: nn.Module) -> None:
    """Raise UserError for a module that has nothing to train, or a state that is no tensor."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise UserError(
            f"{type(module).__name__} has no parameter that requires a gradient; nothing can learn"
        )
    odd = [name for name, value in module.state_dict().items() if not isinstance(value, Tensor)]
    if odd:
        raise UserError(
            f"the state of {type(module).__name__} has {', '.join(odd[:3])}, no tensors, which a checkpoint "
            "cannot keep; make tensors of them"
        )


def _split(
    dataset: Given, validation: Given | float | None, training: SupervisedTraining
) -> tuple[Samples | None, Given | Samples | None]:
    """The samples to train on, None where the data set is read as it is, and those for validation."""
    samples = samples_of(dataset, training.batch_size)
    if samples is not None and len(samples) == 0:
        raise UserError("the data set is empty; give one with samples")
    if not isinstance(validation, float | int):
        return samples, validation
    if samples is None:
        raise UserError(
            "a fraction for validation can be drawn from a map-style data set only; give the validation data "
            "as a data set of their own"
        )
    return split(samples, validation, training.seed)


def _recipe(
    module: nn.Module,
    dataset: Given,
    samples: Samples | None,
    loss: str | Loss,
    training: SupervisedTraining,
) -> Recipe:
    """What the run's directory keeps of what was given."""
    name = type(module).__name__
    whole = loader_of(dataset, training.batch_size).dataset if samples is None else samples.dataset
    classes = getattr(whole, "classes", None)
    return Recipe(
        name=name.lstrip("_") or "module",
        data=GivenData(
            type="dataset",
            samples=None if samples is None else len(samples),
            classes=len(classes) if isinstance(classes, list | tuple) and classes else None,
        ),
        network=Network(module=f"{type(module).__module__}.{type(module).__qualname__}"),
        objective=LossObjective.model_validate({"loss": loss if isinstance(loss, str) else "custom"}),
        training=training,
    )
