"""Training from Python: of a user's module and dataset, or of a recipe.

Knows: the arguments, exceptions for a program. Does not know: the training.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from cotswold.api.callbacks import OnEvent
from cotswold.api.request import Request, Resumed, directory_as_written, override_list, recipe_name
from cotswold.api.run import Run
from cotswold.api.run_job import RunObservers, run_of
from cotswold.api.signals import catch_sigint
from cotswold.api.threads import threads_override
from cotswold.errors import UserError
from cotswold.recipe import Recipe
from cotswold.ui.display import display_for

if TYPE_CHECKING:
    from torch import nn

    from cotswold.api.modules.request import Loss, UserData
    from cotswold.recipe.strategies import StrategyObject
    from cotswold.run import Stop
    from cotswold.run.events import Observer
    from cotswold.training.callbacks.base import Callback
    from cotswold.training.components import Components, OptimizerSource, SchedulerSource
    from cotswold.training.metrics.base import Metric
    from cotswold.training.metrics.function_metric import BatchFunction

    LossName = Literal["cross_entropy", "squared_error", "bce_with_logits"]
    StrategyName = Literal["supervised", "batch", "downpour"]
    Precision = Literal["32", "bf16-mixed", "16-mixed"]

Item = TypeVar("Item")


def train(
    module: nn.Module | str,
    dataset: UserData | None = None,
    *,
    loss: LossName | str | Loss | None = None,
    directory: str | Path | Run | None = None,
    strategy: StrategyObject | StrategyName | None = None,
    optimizer: str | OptimizerSource | None = None,
    scheduler: str | SchedulerSource | None = None,
    validation: UserData | float | None = None,
    metrics: Sequence[str | Metric | BatchFunction] = (),
    callbacks: Sequence[Callback | OnEvent] = (),
    loggers: Sequence[str | Observer] | None = None,
    epochs: float | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    seed: int | None = None,
    precision: Precision | None = None,
    accumulate: int | None = None,
    clip_norm: float | None = None,
    compile: bool | None = None,
    device: str | None = None,
    threads: int | None = None,
    grid: str | None = None,
    replicas: int | None = None,
    restarts: int = 0,
    resume: Resumed = False,
    progress: bool | None = None,
    stop: Stop | None = None,
) -> Run:
    """Train a module on a dataset, and return the run.

    ``train(module, dataset, loss="cross_entropy", directory="runs/mine", epochs=3)``. The module is trained
    in place and is in eval mode afterwards. A strategy with settings is an object:
    ``strategy=cotswold.Downpour(workers=4, update_rule="adagrad")``, or
    ``strategy=cotswold.FullBatch(method="lbfgs", max_iterations=50)``.

    The first Ctrl-C (or a notebook's interrupt) finishes the step, saves, and raises KeyboardInterrupt; a
    second one stops at once without saving. A run that is stopped by ``stop`` is returned instead.

    Args:
        module: A module. Or ``"package:function"``, a function that makes ``(module, dataset)``, or
            ``(module, dataset, validation)``, in every process of the run.
        dataset: A torch Dataset of pairs (input, target) of tensors, a DataLoader, which is read unchanged,
            or (inputs, targets) as tensors or arrays. An input may be a tuple or dict.
        loss: A function of (output, target) that returns the mean over samples, or a name.
        directory: Directory of the run, which must not exist unless the run is resumed [runs/NAME].
        strategy: `Supervised`, `FullBatch` or `Downpour` with settings, or a name, for the defaults
            ["supervised"].
        optimizer: A function that makes an optimiser from parameters, such as
            ``functools.partial(torch.optim.AdamW, lr=1e-3)``; an optimiser on the module's parameters; or a
            name [that of the strategy].
        scheduler: A function that makes a scheduler from the optimiser; it takes a step after each update,
            or with `PerEpoch` after each epoch. Or a name, "constant", "linear" or "cosine" [that of the
            strategy].
        validation: A dataset, or the fraction of a map-style dataset. [none]
        metrics: Names, objects, or functions of (output, target), measured on validation data.
        callbacks: `cotswold.callbacks.Callback` objects; a function receives every event of the run.
        loggers: Names or objects that receive the run's curves ["tensorboard", if it is installed].
        epochs: Passes over the training samples; short for a field of ``strategy``, as are the next ones.
        batch_size: Samples per step.
        learning_rate: Peak learning rate.
        seed: Seed of the sample order and of dropout.
        precision: "32", or "bf16-mixed" or "16-mixed" for mixed precision.
        accumulate: Batches whose gradients are summed into one step.
        clip_norm: Largest norm of a gradient; a larger one is scaled down.
        compile: Compile the module by torch.compile.
        device: A torch device, or "auto", which takes CUDA or MPS if available [the module's].
        threads: Threads of each process. [all cores]
        grid: Rows and columns of processes that partition every map, such as ``"2x2"``.
        replicas: Number of data-parallel copies, each with a part of every batch.
        restarts: Maximum number of restarts from the last checkpoint after a process of a grid died.
        resume: True resumes from the newest intact checkpoint; ``"if_started"`` does so if the run exists.
            Settings, a loss by name and a validation fraction need not be repeated.
        progress: Show progress. [if on a terminal or in a notebook]
        stop: A `Stop`; its ``request()``, from a callback or another thread, stops the run.

    Raises:
        RecipeError: if a setting is invalid.
        RunError: if the directory contains another run, or none to resume.
        UserError: if an argument is invalid, or the module or dataset cannot be trained.
        MachineError: if memory, disk or processes fail.
        DivergedError: if the loss is no longer finite.
    """
    from cotswold.api.modules.request import ModuleRequest
    from cotswold.api.modules.train import train_module

    _check_arguments(resume, directory, restarts, stop)
    threads_override(threads)  # validates threads
    metrics, callbacks = _listed("metrics", metrics), _listed("callbacks", callbacks)
    loggers = None if loggers is None else _listed("loggers", loggers)
    names, objects = _split_components(optimizer, scheduler, metrics, callbacks, loggers)
    shortened = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
        "precision": precision,
        "accumulate": accumulate,
        "clip_norm": clip_norm,
        "compile": compile,
        "device": device,
        "threads": threads,
        "grid": grid,
        "replicas": replicas,
    }
    request = ModuleRequest.of(
        module,
        dataset,
        directory=directory_as_written(directory),
        loss=loss,
        validation=validation,
        strategy=strategy,
        settings={**{name: value for name, value in shortened.items() if value is not None}, **names},
        resume=resume,
        components=objects,
    )
    outcome = train_module(request, _observers(callbacks, progress, stop), restarts=restarts)
    return run_of(outcome, stop, module=request.new_module)


def train_recipe(
    recipe: str | Path | Recipe | None = None,
    directory: str | Path | Run | None = None,
    *,
    overrides: Mapping[str, object] | Sequence[str] = (),
    optimizer: OptimizerSource | None = None,
    scheduler: SchedulerSource | None = None,
    metrics: Sequence[str | Metric | BatchFunction] = (),
    callbacks: Sequence[Callback | OnEvent] = (),
    loggers: Sequence[str | Observer] | None = None,
    grid: str | None = None,
    replicas: int | None = None,
    restarts: int = 0,
    threads: int | None = None,
    stores: str | Path | None = None,
    resume: Resumed = False,
    progress: bool | None = None,
    stop: Stop | None = None,
) -> Run:
    """Train a recipe, and return the run: ``train_recipe("demo", "runs/mine")``.

    For interrupts see `train`.

    Args:
        recipe: A shipped name, a file, or a `Recipe`. Not needed to resume.
        directory: Directory of the run, which must not exist unless the run is resumed [runs/NAME].
        overrides: Changed fields, ``{"training.epochs": 3}`` or ``["training.epochs=3"]``.
        optimizer: A function that makes an optimiser from parameters [the recipe's].
        scheduler: A function that makes a scheduler from the optimiser [the recipe's].
        metrics: Names, instead of the recipe's, and objects or functions in addition.
        callbacks: `cotswold.callbacks.Callback` objects; a function receives every event of the run.
        loggers: Names, instead of the recipe's, and objects.
        grid: Partition every map over the processes of a grid, such as ``"2x2"``, which are started on this
            machine and write logs to the run's directory. [the recipe's]
        replicas: Number of data-parallel copies, each with a part of every batch. [the recipe's]
        restarts: Maximum number of restarts from the last checkpoint after a process died.
        threads: Threads of each process. [as in the recipe, else all cores]
        stores: Folder of prepared stores. [default folder]
        resume: True resumes from the newest intact checkpoint; ``"if_started"`` does so if the run exists.
        progress: Show progress. [if on a terminal or in a notebook]
        stop: A `Stop`; its ``request()``, from a callback or another thread, stops the run.

    Raises:
        RecipeError: if the recipe or an override is invalid.
        RunError: if the directory contains another run, or none to resume.
        SourceError: if the recipe's source cannot be read.
        StoreError: if a store is damaged.
        UserError: if an argument is invalid.
        MachineError: if memory, disk or processes fail.
        DivergedError: if the loss is no longer finite.
    """
    from cotswold.api.train_recipe import train_request

    _check_arguments(resume, directory, restarts, stop)
    if recipe is not None and not isinstance(recipe, str | Path | Recipe):
        raise UserError(
            f"{' '.join(repr(recipe).split()):.80} is no recipe (a name, a file, an object); for a module, "
            "call train"
        )
    kept = None if stores is None else Path(stores)
    metrics, callbacks = _listed("metrics", metrics), _listed("callbacks", callbacks)
    loggers = None if loggers is None else _listed("loggers", loggers)
    names, objects = _split_components(optimizer, scheduler, metrics, callbacks, loggers)
    more = {f"training.{name}": value for name, value in names.items()}
    more |= {} if replicas is None else {"mesh.replicas": replicas}
    with recipe_name(recipe) as name:
        given = [*override_list(overrides), *override_list(more), *threads_override(threads)]
        request = Request(name, directory_as_written(directory), given, kept, resume, components=objects)
        outcome = train_request(request, _observers(callbacks, progress, stop), grid=grid, restarts=restarts)
    return run_of(outcome, stop, stores=kept)


def _check_arguments(resume: object, directory: object, restarts: object, stop: object) -> None:
    """Raise UserError for an argument of a wrong type."""
    from cotswold.run import Stop

    if resume not in (False, True, "if_started"):
        raise UserError(f'resume must be True, False, or "if_started", got {resume!r}')
    if directory is not None and not isinstance(directory, str | Path | Run):
        raise UserError(
            f"directory must be a path, got {directory!r:.80}; a recipe names its data, and a module has its "
            "data set as the second argument of train"
        )
    if isinstance(restarts, bool) or not isinstance(restarts, int) or restarts < 0:
        raise UserError(f"restarts must be an integer of at least 0, got {restarts!r:.80}")
    if stop is not None and not isinstance(stop, Stop):
        raise UserError(f"stop must be a cotswold.Stop(), got {stop!r:.80}")


def _observers(
    callbacks: Sequence[Callback | OnEvent], progress: bool | None, stop: Stop | None
) -> RunObservers:
    """Return the receivers of events in this process; functions of ``callbacks`` are among them."""
    from cotswold.run import Stop

    functions = tuple(each for each in callbacks if not _is_callback(each))
    return RunObservers(display_for(progress), functions, stop or Stop(), catch_sigint)  # type: ignore[arg-type]  # checked above


def _is_callback(given: object) -> bool:
    """True for a callback object; without the module that defines the class there is none."""
    base = sys.modules.get("cotswold.training.callbacks.base")
    return base is not None and isinstance(given, base.Callback)


def _listed(what: str, given: Iterable[Item] | None) -> tuple[Item, ...]:
    """Return the items of an argument; none for None."""
    if given is not None and (isinstance(given, str) or callable(given) or not isinstance(given, Iterable)):
        raise UserError(f"{what} must be a list, got {given!r:.80}; write {what}=[...]")
    return tuple(given or ())


def _split_components(
    optimizer: str | OptimizerSource | None,
    scheduler: str | SchedulerSource | None,
    metrics: Sequence[str | Metric | BatchFunction],
    callbacks: Sequence[Callback | OnEvent],
    loggers: Sequence[str | Observer] | None,
) -> tuple[dict[str, object], Components | None]:
    """Return the fields of `[training]` that are given by name, and the objects (None without any)."""
    classes = [each for each in callbacks if isinstance(each, type)]
    if classes:
        name = classes[0].__name__
        raise UserError(f"the callback {name} is a class; give an object: {name}(...)")
    wrong = [each for each in callbacks if not (callable(each) or _is_callback(each))]
    if wrong:
        raise UserError(
            f"{wrong[0]!r:.80} is no callback; give objects of cotswold.callbacks.Callback, or functions "
            "of an event"
        )
    names: dict[str, object] = {}
    if isinstance(optimizer, str):
        names["optimizer"] = optimizer
    if isinstance(scheduler, str):
        names["schedule"] = scheduler
    if named := [each for each in metrics if isinstance(each, str)]:
        names["metrics"] = named
    if loggers is not None:
        names["loggers"] = [each for each in loggers if isinstance(each, str)]
    own_callbacks = tuple(each for each in callbacks if _is_callback(each))
    own_metrics = tuple(each for each in metrics if not isinstance(each, str))
    own_loggers = tuple(each for each in loggers or () if not isinstance(each, str))
    own_optimizer = None if isinstance(optimizer, str) else optimizer
    own_scheduler = None if isinstance(scheduler, str) else scheduler
    if not any((own_optimizer, own_scheduler, own_metrics, own_callbacks, own_loggers)):
        return names, None
    from cotswold.training.components import Components

    return names, Components(own_optimizer, own_scheduler, own_metrics, own_callbacks, own_loggers)
