"""Training, from Python: a recipe, or a module and a data set of one's own.

Knows: which of the two is asked for, and what a program hears of it. Does not know: how anything is trained.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.callbacks import OnEvent
from cotswold.api.request import Request, Resumed, is_factory, override_list, place_of, recipe_name
from cotswold.api.run import Run
from cotswold.api.run_job import Hearing, run_of
from cotswold.api.signals import interruptible
from cotswold.api.threads import threads_override
from cotswold.api.train_recipe import carry_out
from cotswold.errors import UserError
from cotswold.recipe import Recipe
from cotswold.ui.display import display_for

if TYPE_CHECKING:
    from torch import nn

    from cotswold.api.train_module import Given, Loss
    from cotswold.run import Stop


def train(
    recipe: str | Path | Recipe | nn.Module | None = None,
    dataset: str | Path | Run | Given | None = None,
    directory: str | Path | Run | None = None,
    *,
    loss: str | Loss | None = None,
    validation: Given | float | None = None,
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
    """Train a recipe, or a module on a data set, and return the run.

    **A recipe**: ``train("demo", "runs/mine")``. A shipped name, a file, or a `Recipe`, and the run's
    directory (here the second argument), runs/NAME by default. ``overrides``: fields of the recipe, as
    ``{"training.epochs": 3}`` or ``["training.epochs=3"]``. ``stores``: where prepared samples are kept.

    **A module of one's own**: ``train(module, dataset, "runs/mine", loss="cross_entropy", epochs=3)``. The
    data set gives pairs (input, target) of tensors; it is a torch Dataset, a DataLoader, which is read as it
    is, or (inputs, targets), tensors or arrays; an input may be a tuple or dict.
    ``loss`` takes (output, target), or is a name: cross_entropy, squared, logistic.
    ``validation``: a data set, or the fraction of a map-style one that is kept for it. ``settings`` are
    the fields of ``[training]`` that ``strategy`` has: epochs, batch_size, learning_rate and so on. With
    ``strategy="batch"`` value and gradient are of the whole data set: ``method="lbfgs"``, ``iterations=50``,
    and the fields of ``[cluster]``: ``workers=4``. Otherwise the strategy is `supervised`. The
    module is trained in place, and in eval mode afterwards. A run that is resumed knows what is not given
    again: settings, a loss by name, a fraction for validation. For several processes give
    ``"package:function"`` in the module's place: the function makes ``(module, dataset)`` in each of them.

    The directory must not exist, unless the run is resumed: ``resume=True`` goes on from the newest good
    checkpoint, ``"if_started"`` goes on if there is a run, and begins one otherwise. ``grid="2x2"`` cuts
    every map over four processes of this machine, which it starts; they keep logs in the run's directory, and
    begin again from the last checkpoint at most ``restarts`` times when one has died. ``threads``: of each
    process.

    ``on_event`` hears every event, a mapping; it cannot stop the run by an error, only by KeyboardInterrupt.
    ``progress``: show it, by default on a terminal and in a notebook. Ctrl-C (a notebook's interrupt)
    finishes the step, saves, and raises KeyboardInterrupt; a second one leaves at once. With a ``stop`` of
    its own, whose ``signal`` a callback or another thread sets, the run stops as well, and is returned.

    Raises RecipeError, RunError (a directory that is taken, another recipe), SourceError, StoreError,
    UserError (a module or data set that cannot be trained), MachineError, DivergedError.
    """
    from cotswold.run import Stop

    if resume not in (False, True, "if_started"):
        raise UserError(f'resume={resume!r} says nothing; give True, False, or "if_started"')
    hearing = Hearing(display_for(progress), on_event, stop or Stop(), interruptible)
    if loss is not None or _is_module(recipe) or is_factory(recipe):
        from cotswold.api.train_module import ModuleRequest, carry_out_module

        if stores is not None or overrides:
            raise UserError("stores and overrides belong to a recipe; a module's settings are given by name")
        own = ModuleRequest.of(
            recipe, dataset, place_of(directory), loss, validation, strategy, settings, threads, resume, grid
        )
        outcome = carry_out_module(own, hearing, grid=grid, restarts=restarts)
        return run_of(outcome, stop, module=own.made)
    if settings or validation is not None or strategy is not None:
        words = ", ".join([*settings, *["validation"] * (validation is not None)]) or "strategy"
        raise UserError(f"{words}: a recipe says that itself; change it by overrides={{...}}")
    if isinstance(dataset, str | Path | Run):
        if directory is not None:
            raise UserError("the run's directory is given twice; a recipe takes no data set")
        directory = dataset
    elif dataset is not None:
        raise UserError("a recipe names its own data; a data set goes with a module and loss=")
    if recipe is not None and not isinstance(recipe, str | Path | Recipe):
        raise UserError(f"{recipe!r:.80} is neither a recipe (a name, a file, an object) nor a module")
    kept = None if stores is None else Path(stores)
    with recipe_name(recipe) as name:
        given = [*override_list(overrides), *threads_override(threads)]
        request = Request(name, place_of(directory), given, kept, resume)
        outcome = carry_out(request, hearing, grid=grid, restarts=restarts)
    return run_of(outcome, stop, stores=kept)


def _is_module(given: object) -> bool:
    """Whether this is a module of torch, or a class of them, which whoever has one has loaded."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    return isinstance(given, torch.nn.Module) or (
        isinstance(given, type) and issubclass(given, torch.nn.Module)
    )
