"""A program's own module and data set under strategy `batch`.

Knows: what of them whole-set optimisation needs. Does not know: methods, when a run ends.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from torch import nn
from torch.utils.data import DataLoader

from cotswold.checkpoint import Checkpoint
from cotswold.errors import UserError
from cotswold.processes.forked_work import live_processes
from cotswold.recipe import Recipe
from cotswold.recipe.schema import BatchTraining
from cotswold.run import Recorder
from cotswold.training.data.indexed import SamplePatterns
from cotswold.training.data.loaders import is_plain
from cotswold.training.data.user_datasets import Given, Samples, samples_of
from cotswold.training.distributed import Team
from cotswold.training.full_batch.cluster import spread
from cotswold.training.full_batch.objective import INHERITED, ModuleWork, check_repeatable, check_steady
from cotswold.training.full_batch.strategy import in_one_process, on_cluster
from cotswold.training.jobs.same_module import check_module
from cotswold.training.losses import Loss
from cotswold.training.trainers.full_batch import Evaluations


@dataclass(frozen=True)
class GivenModule:
    """What a program gives to be trained."""

    module: nn.Module
    samples: Given | Samples
    validation: Given | Samples | None
    loss: Loss


@dataclass(frozen=True)
class Factory:
    """How processes of other machines make what a program gives."""

    name: str
    """``"module:function"``, which returns (module, dataset) or (module, dataset, validation)."""
    loss: str | None
    """A name, or ``"module:function"``; None for a function that has none."""
    validation: float | None
    """The fraction of the data set that is kept for validation."""


class ModuleEvaluations(Evaluations):
    """Evaluations of a module that somebody has made again where the run is resumed."""

    def resume(self, checkpoint: Checkpoint) -> None:
        """As `Evaluations`; raises MismatchError for another module, before anything of it is filled."""
        check_module(self.network, checkpoint)
        super().resume(checkpoint)


def check(
    module: nn.Module, dataset: Given, validation: Given | float | None, training: BatchTraining
) -> None:
    """Raise UserError for a module or data that strategy batch cannot train, before there is a run."""
    check_steady(module)
    for what, given in (("the data set", dataset), ("the validation set", validation)):
        if not isinstance(given, float | int | None):
            map_style(what, given, training.portion, "batch")


def check_elsewhere(factory: Factory | None, recipe: Recipe) -> None:
    """Raise UserError for what processes of other machines cannot make, before there is a run."""
    assert isinstance(recipe.training, BatchTraining), "others have no address"
    if recipe.gang is not None:
        raise UserError(
            "the ranks of a gang have a program's module from this process, not from other machines; "
            "leave address or grid out, or train a recipe"
        )
    _arguments(factory, recipe.training)


def work_of(given: GivenModule, portion: int) -> ModuleWork:
    """What a process computes of it; raises UserError for data that give no samples by number."""
    held = None
    if given.validation is not None:
        held = SamplePatterns(map_style("the validation set", given.validation, portion, "batch"))
    learnt = SamplePatterns(map_style("the data set", given.samples, portion, "batch"))
    return ModuleWork(given.module, given.loss, learnt, held)


def build(
    given: GivenModule,
    factory: Factory | None,
    recipe: Recipe,
    run: Path,
    recorder: Recorder,
    open_things: ExitStack,
    team: Team,
) -> Evaluations:
    """The runner of a module. Workers of this machine are forked from this process, so they have it and its
    data; those of others call the ``factory``."""
    training = recipe.training
    assert isinstance(training, BatchTraining), "chosen by it"
    if team.mesh is not None:
        raise UserError(
            "strategy batch starts its workers, and their ranks, itself (workers=, grid=); start one process"
        )
    work = work_of(given, training.portion)
    check_repeatable(work, training.portion)
    if recipe.alone:
        return in_one_process(work, recipe, recorder, ModuleEvaluations)
    if recipe.cluster.address is None:
        where, arguments = "cotswold.training.full_batch.objective:inherited_work", dict[str, object]()
        if recipe.gang is not None:
            where = "cotswold.training.model_parallel.full_batch_worker:inherited_gang"
            arguments = {
                "grid": recipe.gang,
                "timeout_seconds": recipe.mesh.timeout,
                "in_flight": recipe.mesh.in_flight,
            }
        there = spread(
            recipe,
            run,
            where,
            arguments,
            recorder,
            open_things,
            lambda: live_processes({INHERITED: work}),
        )
    else:
        where, arguments = "cotswold.training.jobs.factories:in_worker", _arguments(factory, training)
        there = spread(recipe, run, where, arguments, recorder, open_things)
        there.write("x", work.parameters)  # a factory may draw others in each process
    return on_cluster(there, work.flat, training, recorder, ModuleEvaluations)


def _arguments(factory: Factory | None, training: BatchTraining) -> dict[str, object]:
    """What workers of other machines are told; raises UserError where they cannot make the same."""
    if factory is None:
        raise UserError(
            "a module that is there cannot be sent to other machines; name a function that makes it and the "
            'data set, train("package.module:function", loss=..., address=...), or leave address out'
        )
    if factory.loss is None:
        raise UserError('a loss for other machines is a name, or "package.module:function"')
    if factory.name.startswith("__main__:") or factory.loss.startswith("__main__:"):
        raise UserError(
            f"{factory.name} is in the program itself, which other machines do not run; put what they need "
            "into a module beside it, and name that"
        )
    return {
        "factory": factory.name,
        "loss": factory.loss,
        "validation": factory.validation,
        "portion": training.portion,
        "seed": training.seed,
        "paths": [str(Path(each).absolute()) for each in sys.path],
    }


def map_style(what: str, given: Given | Samples, size: int, strategy: str) -> Samples:
    """What gives its samples by number, in batches of ``size``; raises UserError for what does not.

    Of a DataLoader the data set and the collate function are taken; a sample is read in the process that
    computes with it.
    """
    if isinstance(given, Samples):
        return given
    if not isinstance(given, DataLoader):
        found = samples_of(given, size)
        if found is None:
            raise UserError(_unnumbered(strategy, what, "an IterableDataset", given))
        return found
    if not is_plain(given):
        of = given if type(given) is not DataLoader else given.dataset
        raise UserError(_unnumbered(strategy, what, "a DataLoader", of))
    if given.worker_init_fn is not None:
        raise UserError(
            f"strategy {strategy} reads samples in its own processes, and would never call the "
            f"worker_init_fn of the DataLoader that is {what}; give its data set, without the DataLoader"
        )
    return Samples(given.dataset, size, collate=given.collate_fn)


def _unnumbered(strategy: str, what: str, kind: str, of: object) -> str:
    return (
        f"strategy {strategy} asks for samples by their numbers, and {what} is {kind} "
        f"({type(of).__name__}) that gives them in an order of its own; give a map-style data set"
    )
