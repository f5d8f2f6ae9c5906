"""Runs that train a module and a data set of a Python program.

Knows: how a module and a data set replace a recipe's layers and store. Does not know: how they are trained,
the terminal.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from cotswold import recipe as recipes
from cotswold.errors import UserError, outside_level
from cotswold.mesh import partition
from cotswold.processes.ray.settings import check_joinable
from cotswold.recipe import Recipe
from cotswold.recipe.schema import (
    BatchTraining,
    Cluster,
    DownpourTraining,
    GivenData,
    LayerTraining,
    LossObjective,
    Mesh,
    Network,
    SupervisedTraining,
)
from cotswold.run import RUNS, Recorder, RunDirectory, describe_environment
from cotswold.run.loggers.registry import check_observers
from cotswold.training.async_sgd import module_downpour
from cotswold.training.components import Components
from cotswold.training.data.batches import call_with_parts, require_single_tensor
from cotswold.training.data.loaders import resume_note
from cotswold.training.data.user_datasets import (
    Samples,
    UserData,
    data_set,
    epoch_samples,
    loader_of,
    split_samples,
    training_batches,
    validation_batches,
)
from cotswold.training.distributed import SINGLE_PROCESS, RankContext
from cotswold.training.full_batch import module_batch
from cotswold.training.full_batch.module_batch import Factory
from cotswold.training.jobs.check_outputs import check_outputs
from cotswold.training.jobs.create import Resume, is_started, open_on_all_ranks, same_recipe
from cotswold.training.jobs.extend import apply_extension, stages
from cotswold.training.jobs.job import Job
from cotswold.training.jobs.module_checks import (
    check_classes,
    check_module_learns,
    with_batch_size,
    with_module_device,
)
from cotswold.training.jobs.restore import check_training_device
from cotswold.training.losses import CustomLoss, Loss, loss_by_name
from cotswold.training.metrics.held_out import metrics_of
from cotswold.training.metrics.registry import check_metrics
from cotswold.training.models import network_tensors
from cotswold.training.optimizers import on_partition, with_own_optimizer
from cotswold.training.strategies.assembly import replicate
from cotswold.training.strategies.module_steps import LocalModuleSteps, ModuleSharded, ModuleSyncTrainer
from cotswold.training.strategies.registry import Runner
from cotswold.training.strategies.supervised import SupervisedStrategy, supervised_training


def open_module_job(
    module: nn.Module,
    dataset: UserData | tuple[Any, ...],
    *,
    loss: str | Loss,
    directory: str | Path | None = None,
    settings: LayerTraining | None = None,
    cluster: Cluster | None = None,
    factory: Factory | None = None,
    mesh: Mesh | None = None,
    validation: UserData | tuple[Any, ...] | float | None = None,
    resume: Resume = Resume.NEVER,
    rank_context: RankContext = SINGLE_PROCESS,
    components: Components | None = None,
) -> ModuleJob:
    """Return a job that trains any module with strategy `supervised`, `batch` or `downpour`.

    The module is trained in place, on ``settings.device``, or on its own device if that is not set. Layers in
    evaluation mode stay in that mode, unless the whole module is in evaluation mode. The directory may be new
    or hold a run to resume.

    Checkpoints hold parameters, buffers, momentum, random states and the position in the data set. A run
    resumed with a module of the same names and shapes and the same data set has the same bits as an
    uninterrupted one. (`loaders.resume_note` names the DataLoaders without that guarantee.) More
    ``settings.epochs`` than before extend the run.

    With `batch` settings samples are read by index, so the data set must be map-style and give the same
    sample each time. FLOPs are those that torch counts in the first step, forward and gradient; operations
    unknown to torch count as zero. On a mesh the module is partitioned (`mesh.partition`), and rank 0's FLOPs
    count for every rank.

    Args:
        module: The module to train.
        dataset: Pairs (input, target) of tensors: a map-style or iterable data set, a DataLoader, which makes
            its own batches, or a tuple (inputs, targets). Otherwise batches have ``settings.batch_size``
            samples; the last of an epoch may be smaller.
        loss: A function of (output, target) that returns the mean over samples, or a name: `cross_entropy`,
            `squared_error`, `bce_with_logits`. For class targets the accuracy is measured too.
        directory: The directory of the run; None means `runs/` and the module's class name.
        settings: The `[training]` settings; None means those of `supervised`.
        cluster: The processes of strategies `batch` and `downpour`.
        factory: Makes the same module and data set on other machines, for workers there.
        mesh: The grid of ranks of each worker.
        validation: A data set, or the fraction of a map-style ``dataset`` to hold out, drawn by the seed.
        resume: What to do if the directory holds a run, or none.
        rank_context: The ranks that train together; each calls this with the same module and data set.
        components: The program's optimiser, scheduler, metrics, callbacks and loggers.

    Returns:
        The job, ready to train.

    Raises:
        UserError: If the module or data set cannot be trained.
        RunError: If the directory is taken, or holds another run.
        RecipeError: If the device or the loss is unknown.
        MachineError: If the device is missing on this machine.
    """
    began = time.monotonic()
    training: LayerTraining = settings or SupervisedTraining(strategy="supervised")
    data = data_set(dataset)
    validation_data = validation if isinstance(validation, float | int | None) else data_set(validation)
    if not callable(loss) and not isinstance(loss, str):
        raise UserError(f"loss must be a name or a function of (output, target), got {loss!r:.80}")
    function = loss_by_name(loss) if isinstance(loss, str) else CustomLoss(loss)
    check_module_learns(module)
    check_classes(data, validation_data)
    training = with_module_device(module, training)
    check_training_device(training)
    check_outputs(training)
    training = with_own_optimizer(training, components or Components())
    if isinstance(training, BatchTraining):
        module_batch.check(module, data, validation_data, training)
    elif isinstance(training, DownpourTraining):
        module_downpour.check(module, data, validation_data, training)
    else:
        training = with_batch_size(training, data)
    samples, held = split_samples(data, validation_data, training.batch_size, training.seed)
    if training.patience is not None and validation_data is None:
        raise UserError(
            f"patience={training.patience} stops a run when validation stops improving, but there is no "
            "validation; give validation, a data set or a fraction, or omit patience"
        )
    asked_metrics = [*training.metrics, *(components.metrics if components else ())]
    check_metrics(asked_metrics)
    check_observers(components.loggers if components else ())
    if asked_metrics and validation_data is None:
        raise UserError(
            "metrics are measured on validation samples, but there is no validation; give validation, a data "
            "set or a fraction, or omit metrics"
        )
    wanted = _recipe(module, samples, loss, validation_data, training)
    if cluster is not None:
        wanted = wanted.model_copy(update={"cluster": cluster})
    if mesh is not None:
        wanted = wanted.model_copy(update={"mesh": mesh})
    path = RUNS / wanted.name if directory is None else Path(directory)

    def job(run: RunDirectory, recipe: Recipe, resumed: bool, totals: tuple[Any, ...]) -> ModuleJob:
        return ModuleJob(
            run,
            recipe,
            resumed=resumed,
            rank_context=rank_context,
            totals=totals,
            module=module,
            samples=samples,
            validation=held,
            loss=function,
            factory=factory,
            components=components or Components(),
        )

    def opened() -> ModuleJob:
        if wanted.cluster.ray_address is not None:
            if isinstance(training, DownpourTraining):
                raise UserError(
                    "replicas of a program's module are forks of the program, on this machine; omit "
                    "ray_address, train a recipe, or serve the module to loops on other machines "
                    "(cotswold serve)"
                )
            module_batch.check_remote_construction(factory, wanted)
            check_joinable(wanted.cluster.ray_address)
        if not is_started(path, resume, python=True):
            run = RunDirectory.create_or_replace(path, recipes.dump(wanted), describe_environment())
            return job(run, wanted, False, ())
        run = RunDirectory.open(path).recognised()
        kept = recipes.load(run.recipe)
        _check_validation(validation, kept, path)
        asked, totals = apply_extension(_with_run_names(wanted, kept), kept, run)
        same_recipe(asked, kept, path)
        return job(run, asked, True, totals)

    def describe_job(opened: ModuleJob) -> dict[str, object]:
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

    return replace(open_on_all_ranks(rank_context, opened, describe_job, join), start_time=began)


def _warning(recorder: Recorder) -> Callable[[str], None]:
    """Return a function that warns at once, and again at the end of the run."""

    def warn(said: str) -> None:
        warnings.warn(said, stacklevel=outside_level("cotswold", "torch"))
        recorder.warn(said)

    return warn


@dataclass(frozen=True, kw_only=True)
class ModuleJob(Job):
    """A run that trains a user's module on the user's data set.

    Args:
        module: The module, trained in place.
        samples: The training samples.
        validation: The validation samples, or None.
        loss: The loss.
        factory: Makes the same module and data set in workers on other machines.
    """

    module: nn.Module
    samples: UserData | Samples
    validation: UserData | Samples | None
    loss: Loss
    factory: Factory | None = None

    def check(self) -> None:
        """Do nothing: the memory of a module is unknown before it runs."""

    def metadata(self) -> Mapping[str, object]:
        """Return no metadata beyond the recipe's."""
        return {}

    def build(self, recorder: Recorder, exit_stack: ExitStack, *, fresh: bool) -> Runner:
        """Build the trainer: of synchronous steps, full-batch evaluations or replicas."""
        recorder.allow_nonfinite(network_tensors(self.module))
        if (
            self.rank_context.mesh is None and self.recipe.worker_grid is None
        ):  # a module with hooks cannot be partitioned
            hook = self.module.register_forward_pre_hook(call_with_parts, with_kwargs=True)
            exit_stack.callback(hook.remove)
        given = module_batch.TrainArguments(
            self.module, self.samples, self.validation, self.loss, self.components.metrics
        )
        if isinstance(self.recipe.training, BatchTraining):
            return module_batch.build(
                given, self.factory, self.recipe, self.run.path, recorder, exit_stack, self.rank_context
            )
        if isinstance(self.recipe.training, DownpourTraining):
            return module_downpour.build(given, self.recipe, self.run.path, recorder, exit_stack)
        training = supervised_training(self.recipe)
        device = torch.device(training.device)
        share = self.rank_context.share
        batches = training_batches(self.samples, training.batch_size, training.seed, device, share)
        metrics = metrics_of(self.recipe, self.loss, self.components.metrics)
        held = self.rank_context.validation_share(metrics)
        validation = validation_batches(self.validation, training.batch_size, device, held)
        epochs, mesh = stages(self.recipe, self.totals), self.rank_context.mesh
        module = self.module.to(device)
        strategy: SupervisedStrategy
        if mesh is None:
            strategy = LocalModuleSteps(
                *(module, training, self.loss, epochs, batches.epoch_steps, validation, self.components),
                warn=_warning(recorder),
            )
        else:
            torch.manual_seed(training.seed)  # all ranks of a partition must draw alike
            partitioned = partition(module, mesh)
            strategy = ModuleSharded(
                partitioned,
                training,
                self.loss,
                epochs,
                batches.epoch_steps,
                validation,
                components=on_partition(self.components, module, partitioned),
                spread=require_single_tensor,  # a partitioned module takes one tensor per batch
                warn=_warning(recorder),
            )
            strategy.ranks = mesh.size
        strategy.metrics = metrics
        replicate(strategy, self.recipe, self.rank_context, exit_stack)
        return ModuleSyncTrainer(strategy, batches, recorder, self.rank_context)

    def announce(self, recorder: Recorder, start: Mapping[str, object]) -> None:
        """Write the start of the run."""
        recorder.event(
            "start",
            **start,
            samples=self.recipe.data.samples if isinstance(self.recipe.data, GivenData) else None,
            module=self.recipe.network.module,
            **({} if self.resume_note is None else {"resume_note": self.resume_note}),
        )

    @property
    def resume_note(self) -> str | None:
        """The caveat about resuming with the program's samples, from `loaders.resume_note`; None if there
        is none.
        """
        if not isinstance(self.recipe.training, SupervisedTraining) or isinstance(self.samples, Samples):
            return None
        return resume_note(loader_of(self.samples, self.recipe.training.batch_size))


def _with_run_names(wanted: Recipe, kept: Recipe) -> Recipe:
    """Return the recipe with the run's name, network and data fields.

    A module is identified by the names and shapes of its tensors, not by the name or location of its class.
    """
    if not isinstance(kept.data, GivenData) or not isinstance(wanted.data, GivenData):
        return wanted
    given = wanted.data
    if kept.data.validation is None and given.validation == "dataset":
        given = given.model_copy(update={"validation": None})
    return wanted.model_copy(update={"name": kept.name, "network": kept.network, "data": given})


def _check_validation(validation: object, kept: Recipe, path: Path) -> None:
    if isinstance(kept.data, GivenData) and kept.data.validation == "dataset" and validation is None:
        raise UserError(
            f"the run in {path} uses a separate validation data set; give it again: validation=..."
        )


def _recipe(
    module: nn.Module,
    samples: UserData | Samples,
    loss: str | Loss,
    validation: UserData | float | None,
    training: LayerTraining,
) -> Recipe:
    """Return the recipe that the run's directory keeps."""
    name = type(module).__name__
    whole = samples.dataset if isinstance(samples, DataLoader | Samples) else samples
    classes = getattr(whole, "classes", None)
    return Recipe(
        name=name.lstrip("_") or "module",
        data=GivenData(
            type="dataset",
            samples=epoch_samples(samples),
            classes=len(classes) if isinstance(classes, list | tuple) and classes else None,
            validation=validation if isinstance(validation, float | int | None) else "dataset",
        ),
        network=Network(module=f"{type(module).__module__}.{type(module).__qualname__}"),
        objective=LossObjective.model_validate({"loss": loss if isinstance(loss, str) else "custom"}),
        training=training,
    )
