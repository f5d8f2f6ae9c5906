"""A user's module and data set under strategy `batch`.

Knows: the requirements of full-batch optimisation on them. Does not know: methods, when a run ends.
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
from cotswold.processes.forked_work import fork_server_of_work
from cotswold.recipe import Recipe
from cotswold.recipe.schema import BatchTraining
from cotswold.run import Recorder
from cotswold.training.data.indexed import DatasetSamples
from cotswold.training.data.loaders import is_plain
from cotswold.training.data.user_datasets import Samples, UserData, samples_of
from cotswold.training.distributed import RankContext
from cotswold.training.full_batch.cluster import open_training_cluster
from cotswold.training.full_batch.objective import INHERITED_OBJECTIVE, ModuleObjective
from cotswold.training.full_batch.objective_checks import check_repeatable, check_steady
from cotswold.training.full_batch.strategy import cluster_trainer, local_trainer
from cotswold.training.jobs.state_check import check_state_matches
from cotswold.training.losses import Loss
from cotswold.training.metrics.held_out import HeldOutMetrics, metrics_of
from cotswold.training.trainers.full_batch import FullBatchTrainer


@dataclass(frozen=True)
class TrainArguments:
    """The arguments of a program's training."""

    module: nn.Module
    samples: UserData | Samples
    validation: UserData | Samples | None
    loss: Loss
    metrics: tuple[object, ...] = ()
    """Metrics in addition to those that the recipe names."""


@dataclass(frozen=True)
class Factory:
    """The factory with which other machines make the program's module and data set."""

    name: str
    """``"module:function"``, which returns (module, dataset) or (module, dataset, validation)."""
    loss: str | None
    """The name of a loss, or ``"module:function"``; None for a function without a name."""
    validation: float | None
    """The fraction of the data set that is held out for validation."""


class ModuleFullBatchTrainer(FullBatchTrainer):
    """The full-batch trainer for a module that the program rebuilds when it resumes the run."""

    def resume(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint; raises MismatchError for another module before any tensor is filled."""
        check_state_matches(self.network, checkpoint)
        super().resume(checkpoint)


def check(
    module: nn.Module, dataset: UserData, validation: UserData | float | None, training: BatchTraining
) -> None:
    """Raise UserError for a module or data that strategy batch cannot train, before a run exists."""
    check_steady(module)
    for what, given in (("the data set", dataset), ("the validation set", validation)):
        if not isinstance(given, float | int | None):
            map_style(what, given, training.portion_size, "batch")


def check_remote_construction(factory: Factory | None, recipe: Recipe) -> None:
    """Raise UserError if processes on other machines cannot make the module or data, before a run exists."""
    assert isinstance(recipe.training, BatchTraining), "other strategies have no address"
    if recipe.worker_grid is not None:
        raise UserError(
            "the ranks of a grid get a program's module from this process, which other machines cannot; "
            "omit ray_address or grid, or train a recipe"
        )
    _arguments(factory, recipe.training)


def work_of(given: TrainArguments, portion: int) -> ModuleObjective:
    """Return the objective of a process; raises UserError for data sets that are not map-style."""
    held = None
    if given.validation is not None:
        held = DatasetSamples(map_style("the validation set", given.validation, portion, "batch"))
    learnt = DatasetSamples(map_style("the data set", given.samples, portion, "batch"))
    return ModuleObjective(given.module, given.loss, learnt, held)


def build(
    given: TrainArguments,
    factory: Factory | None,
    recipe: Recipe,
    run: Path,
    recorder: Recorder,
    exit_stack: ExitStack,
    rank_context: RankContext,
) -> FullBatchTrainer:
    """Return the trainer of a module.

    Workers on this machine are forks of this process and inherit module and data; others call the
    ``factory``.
    """
    training = recipe.training
    assert isinstance(training, BatchTraining), "only strategy batch comes here"
    if rank_context.mesh is not None:
        raise UserError(
            "strategy batch starts its workers and their ranks itself (workers=, grid=); start one process"
        )
    work = work_of(given, training.portion_size)
    check_repeatable(work, training.portion_size)
    metrics = HeldOutMetrics(metrics_of(recipe, given.loss, given.metrics), work.held, training.portion_size)
    if recipe.alone:
        return local_trainer(work, recipe, recorder, metrics, ModuleFullBatchTrainer)
    if recipe.cluster.ray_address is None:
        where, arguments = "cotswold.training.full_batch.objective:inherited_objective", dict[str, object]()
        if recipe.worker_grid is not None:
            where = "cotswold.training.model_parallel.full_batch_worker:inherited_worker"
            arguments = {
                "grid": recipe.worker_grid,
                "timeout_seconds": recipe.mesh.timeout,
                "microbatches": recipe.mesh.microbatches,
            }
        there = open_training_cluster(
            recipe,
            run,
            where,
            arguments,
            recorder,
            exit_stack,
            lambda: fork_server_of_work({INHERITED_OBJECTIVE: work}),
        )
    else:
        where, arguments = "cotswold.training.jobs.factories:build_objective", _arguments(factory, training)
        there = open_training_cluster(recipe, run, where, arguments, recorder, exit_stack)
        there.write("x", work.parameters)  # a factory may draw other values in each process
    return cluster_trainer(there, work.flat, training, recorder, metrics, ModuleFullBatchTrainer)


def _arguments(factory: Factory | None, training: BatchTraining) -> dict[str, object]:
    """Return the arguments of workers on other machines; raises UserError if they cannot make the same."""
    if factory is None:
        raise UserError(
            "an existing module cannot be sent to other machines; name a function that returns it and the "
            'data set, train("package.module:function", loss=..., strategy=...), or omit ray_address'
        )
    if factory.loss is None:
        raise UserError('a loss for other machines must be a name, or "package.module:function"')
    if factory.name.startswith("__main__:") or factory.loss.startswith("__main__:"):
        raise UserError(
            f"{factory.name} is in the program itself, which other machines do not run; put it "
            "into a module next to the program, and name that module"
        )
    return {
        "factory": factory.name,
        "loss": factory.loss,
        "validation": factory.validation,
        "portion": training.portion_size,
        "seed": training.seed,
        "paths": [str(Path(each).absolute()) for each in sys.path],
    }


def map_style(what: str, given: UserData | Samples, size: int, strategy: str) -> Samples:
    """Return a data set with access by index, in batches of ``size``; raises UserError for others.

    From a DataLoader only the data set and the collate function are used; the process that computes reads its
    samples.
    """
    if isinstance(given, Samples):
        return given
    if not isinstance(given, DataLoader):
        found = samples_of(given, size)
        if found is None:
            raise UserError(_private_order_message(strategy, what, "an IterableDataset", given))
        return found
    if not is_plain(given):
        of = given if type(given) is not DataLoader else given.dataset
        raise UserError(_private_order_message(strategy, what, "a DataLoader", of))
    if given.worker_init_fn is not None:
        raise UserError(
            f"strategy {strategy} reads samples in its own processes, and would never call the "
            f"worker_init_fn of the DataLoader that is {what}; give its data set, without the DataLoader"
        )
    return Samples(given.dataset, size, collate=given.collate_fn)


def _private_order_message(strategy: str, what: str, kind: str, of: object) -> str:
    return (
        f"strategy {strategy} reads samples by index, but {what} is {kind} "
        f"({type(of).__name__}) with a private order; give a map-style data set"
    )
