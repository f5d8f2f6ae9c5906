"""Training from Python: of a recipe, or of a user's module and dataset.

Knows: the distinction of both, exceptions for a program. Does not know: the training.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.callbacks import OnEvent
from cotswold.api.request import (
    Request,
    Resumed,
    directory_as_written,
    is_factory,
    override_list,
    recipe_name,
)
from cotswold.api.run import Run
from cotswold.api.run_job import RunObservers, run_of
from cotswold.api.signals import catch_sigint
from cotswold.api.threads import threads_override
from cotswold.api.train_recipe import train_recipe
from cotswold.errors import UserError
from cotswold.recipe import Recipe
from cotswold.ui.display import display_for

if TYPE_CHECKING:
    from torch import nn

    from cotswold.api.train_module import Loss, UserData
    from cotswold.run import Stop


def train(
    recipe: str | Path | Recipe | nn.Module | None = None,
    dataset: str | Path | Run | UserData | None = None,
    directory: str | Path | Run | None = None,
    *,
    loss: str | Loss | None = None,
    validation: UserData | float | None = None,
    strategy: str | None = None,
    overrides: Mapping[str, object] | Sequence[str] = (),
    grid: str | None = None,
    restarts: int = 0,
    threads: int | None = None,
    stores: str | Path | None = None,
    resume: Resumed = False,
    on_event: OnEvent | None = None,
    progress: bool | None = None,
    stop: Stop | None = None,
    **settings: object,
) -> Run:
    """Train a recipe, or a module on a dataset, and return the run.

    **A recipe**: ``train("demo", "runs/mine")``. The run's directory is the second argument.

    **A user's module**: ``train(module, dataset, "runs/mine", loss="cross_entropy", epochs=3)``. The module
    is trained in place and is in eval mode afterwards. With ``strategy="batch"``, value and gradient are
    those of the whole dataset: ``method="lbfgs"``, ``max_iterations=50``, and fields of ``[cluster]`` such as
    ``workers=4``.

    The first Ctrl-C (or a notebook's interrupt) finishes the step, saves, and raises KeyboardInterrupt; a
    second one stops at once without saving. A run that is stopped by ``stop`` is returned instead.

    Args:
        recipe: A shipped name, a file, a `Recipe`, or a module. For a module in several processes, give
            ``"package:function"``, a function that makes ``(module, dataset)`` in each of them.
        dataset: Data of a module: a torch Dataset of pairs (input, target) of tensors, a DataLoader, which
            is read unchanged, or (inputs, targets) as tensors or arrays. An input may be a tuple or dict.
            For a recipe: the run's directory.
        directory: Directory of the run, which must not exist unless the run is resumed [runs/NAME].
        loss: Loss of a module: a function of (output, target), or cross_entropy, squared_error or
            bce_with_logits.
        validation: Validation data of a module: a dataset, or the fraction of a map-style dataset. [none]
        strategy: Strategy of a module, "supervised", "batch" or "downpour" ["supervised"].
        overrides: Changed fields of a recipe, ``{"training.epochs": 3}`` or ``["training.epochs=3"]``.
        grid: Partition every map over the processes of a grid, such as ``"2x2"``, which are started on this
            machine and write logs to the run's directory. [one process]
        restarts: Maximum number of restarts from the last checkpoint after a process died.
        threads: Threads of each process. [as in the recipe, else all cores]
        stores: Folder of prepared stores, for a recipe. [default folder]
        resume: True resumes from the newest intact checkpoint; ``"if_started"`` does so if the run exists.
            Settings, a loss by name and a validation fraction need not be repeated.
        on_event: Receives every event, a mapping. Its errors do not stop the run, except KeyboardInterrupt.
        progress: Show progress. [if on a terminal or in a notebook]
        stop: A `Stop` whose ``signal`` a callback or another thread sets to stop the run.
        **settings: Fields of ``[training]`` of a module's strategy: epochs, batch_size, learning_rate, ...

    Raises:
        RecipeError: if the recipe or a setting is invalid.
        RunError: if the directory contains another run, or none to resume.
        SourceError: if the recipe's source cannot be read.
        StoreError: if a store is damaged.
        UserError: if an argument is invalid, or the module or dataset cannot be trained.
        MachineError: if memory, disk or processes fail.
        DivergedError: if the loss is no longer finite.
    """
    from cotswold.run import Stop

    if resume not in (False, True, "if_started"):
        raise UserError(f'resume must be True, False, or "if_started", got {resume!r}')
    hearing = RunObservers(display_for(progress), on_event, stop or Stop(), catch_sigint)
    if loss is not None or _is_module(recipe) or is_factory(recipe):
        from cotswold.api.train_module import ModuleRequest, train_module

        if stores is not None or overrides:
            raise UserError("stores and overrides apply to a recipe; pass a module's settings by name")
        own = ModuleRequest.of(
            recipe,
            dataset,
            directory_as_written(directory),
            loss,
            validation,
            strategy,
            settings,
            threads,
            resume,
            grid,
        )
        outcome = train_module(own, hearing, grid=grid, restarts=restarts)
        return run_of(outcome, stop, module=own.new_module)
    if settings or validation is not None or strategy is not None:
        words = ", ".join([*settings, *["validation"] * (validation is not None)]) or "strategy"
        raise UserError(f"{words}: set in the recipe; change it with overrides={{...}}")
    if isinstance(dataset, str | Path | Run):
        if directory is not None:
            raise UserError(
                "the run's directory is given twice; for a recipe the second argument is the directory"
            )
        directory = dataset
    elif dataset is not None:
        raise UserError("a recipe names its data; pass a data set only with a module and loss=")
    if recipe is not None and not isinstance(recipe, str | Path | Recipe):
        raise UserError(f"{recipe!r:.80} is neither a recipe (a name, a file, an object) nor a module")
    kept = None if stores is None else Path(stores)
    with recipe_name(recipe) as name:
        given = [*override_list(overrides), *threads_override(threads)]
        request = Request(name, directory_as_written(directory), given, kept, resume)
        outcome = train_recipe(request, hearing, grid=grid, restarts=restarts)
    return run_of(outcome, stop, stores=kept)


def _is_module(given: object) -> bool:
    """True for a torch module or a class of modules; torch is loaded if there is one."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    return isinstance(given, torch.nn.Module) or (
        isinstance(given, type) and issubclass(given, torch.nn.Module)
    )
