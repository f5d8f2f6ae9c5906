"""A user's module and data set under strategy `downpour`.

Knows: the requirements of replicas on them, that replicas are forks of the program. Does not know: what a
replica does, when a run ends.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

import torch
from torch import nn

from cotswold.checkpoint import Checkpoint
from cotswold.errors import UserError
from cotswold.host import inherited
from cotswold.processes.forked_work import fork_server_of_work
from cotswold.recipe import Recipe
from cotswold.recipe.schema import DownpourTraining
from cotswold.replicas.evaluator import EvaluatorTask
from cotswold.run import Recorder
from cotswold.training.async_sgd.capture import layers_of
from cotswold.training.async_sgd.evaluation import Validation
from cotswold.training.async_sgd.fork_check import try_in_fork
from cotswold.training.async_sgd.gradients import PushFormat
from cotswold.training.async_sgd.hogwild_replica import HogwildReplica, round_of, start_hogwild
from cotswold.training.async_sgd.replica_task import Evaluator, ReplicaTask
from cotswold.training.async_sgd.strategy import ProcessStarter, settings_of
from cotswold.training.data.indexed import DatasetSamples
from cotswold.training.data.user_datasets import UserData
from cotswold.training.full_batch.cluster import cluster_starter
from cotswold.training.full_batch.module_batch import TrainArguments, map_style
from cotswold.training.full_batch.objective import INHERITED_OBJECTIVE
from cotswold.training.full_batch.strategy import described
from cotswold.training.jobs.state_check import check_state_matches
from cotswold.training.metrics.held_out import HeldOutMetrics, metrics_of
from cotswold.training.strategies.module_modes import Modes, is_training_mode
from cotswold.training.trainers.async_sgd import AsyncTrainer

_HOST = "host"
"""The name of the arguments of a multi-process replica: processes, batch, and samples per round."""

_VALIDATION = "validation"


class ModuleAsyncTrainer(AsyncTrainer):
    """The asynchronous trainer for a module that the program rebuilds when it resumes the run."""

    def resume(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint; raises MismatchError for another module before any tensor is filled."""
        check_state_matches(self.module, checkpoint)
        super().resume(checkpoint)


def check(
    module: nn.Module, dataset: UserData, validation: UserData | float | None, training: DownpourTraining
) -> None:
    """Raise UserError for a module or data that replicas cannot share, before a run exists."""
    for name, each in module.named_modules():
        if isinstance(each, nn.modules.batchnorm._BatchNorm) and is_training_mode(module, each):
            raise UserError(
                f"{name or type(module).__name__} ({type(each).__name__}) normalises over a batch, but each "
                "replica would have different means; use another normalisation, such as GroupNorm, or "
                "strategy supervised"
            )
    for what, given in (("the data set", dataset), ("the validation set", validation)):
        if not isinstance(given, float | int | None):
            map_style(what, given, training.batch_size, "downpour")


def build(
    given: TrainArguments, recipe: Recipe, run: Path, recorder: Recorder, exit_stack: ExitStack
) -> ModuleAsyncTrainer:
    """Return the trainer of a module.

    Replicas are forks of this process and inherit module and data; random draws of a data set differ between
    them.
    """
    training = recipe.training
    assert isinstance(training, DownpourTraining), "only strategy downpour comes here"
    size = training.batch_size
    samples = DatasetSamples(map_style("the data set", given.samples, size, "downpour"))
    held = None
    if given.validation is not None:
        held = DatasetSamples(map_style("the validation set", given.validation, size, "downpour"))
    evaluator_task, validation = None, None
    if held is not None:
        evaluator_task = EvaluatorTask(f"{__name__}:inherited_validation", {})
        metrics, judged = metrics_of(recipe, given.loss, given.metrics), copy.deepcopy(given.module)
        HeldOutMetrics(metrics, held, size).check(judged)
        validation = Validation(Evaluator(judged, given.loss, held, size, metrics))
    try_in_fork(given.module, given.loss, samples)
    ways = _push_formats(given.module, training)
    decay, clip = training.weight_decay, training.clip_norm
    modes = Modes(given.module)
    work = ReplicaTask(given.module, given.loss, samples, None, ways, decay, clip)
    modes.learn()
    processes = recipe.cluster.processes
    things: Mapping[str, object] = {
        INHERITED_OBJECTIVE: work,
        _HOST: (processes, size, round_of(recipe)),
        _VALIDATION: validation,
    }
    opening = ProcessStarter(
        settings_of(recipe, run),
        f"{__name__}:{'build_inherited_hogwild' if processes > 1 else 'inherited_task'}",
        {},
        lambda: (cluster_starter(recipe, (), exit_stack, lambda: fork_server_of_work(things)), {}),
        run / "logs",
        recorder,
        evaluator_task,
    )
    return ModuleAsyncTrainer(opening, work.flat, len(samples), training, recorder, described(given.module))


def inherited_validation() -> Validation:
    """Return the evaluation of the evaluator, which is a fork of the program."""
    found = inherited(_VALIDATION)
    assert isinstance(found, Validation), "the parent gave this type"
    return found


def inherited_task() -> ReplicaTask:
    """Return the task of the program from which this replica was forked."""
    found = inherited(INHERITED_OBJECTIVE)
    assert isinstance(found, ReplicaTask), "the parent gave this type"
    torch.seed()  # dropout differs between replicas
    return found


@contextmanager
def build_inherited_hogwild() -> Iterator[HogwildReplica]:
    """Run the replica of the program on several processes, in the leader."""
    processes, batch, together = cast(tuple[int, int, int], inherited(_HOST))  # the parent gave these types
    with start_hogwild(inherited_task(), processes, batch, together) as host:
        yield host


def _push_formats(module: nn.Module, training: DownpourTraining) -> Mapping[str, PushFormat]:
    way = training.sent(0)
    return {} if way == "auto" else dict.fromkeys(layers_of(module), way)
