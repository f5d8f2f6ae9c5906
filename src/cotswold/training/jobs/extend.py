"""Extended runs: training beyond the epochs of the recipe.

Knows: the meaning of "more epochs" for each strategy, the file that records them, the epochs to add. Does not
know: how a phase is trained, files of checkpoints, the terminal.

A run keeps its recipe. Each extension records the new totals in `extended.json` and adds phases for the
missing epochs: one per stack for `greedy`, one otherwise. A phase's schedule spans only that phase, so its
rate rises and falls again. λ has its final value from the start, because its ramp is for random filters.
Momentum starts at zero, except for `supervised`. Up to the start of the new phases, the run has the same bits
as without the extension.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

from cotswold.errors import MachineError, RunError
from cotswold.files import MalformedError, disk_errors, read_object, replace_file, take
from cotswold.files.untrusted_json import describe_format_error
from cotswold.recipe import Recipe
from cotswold.recipe.schema import BatchTraining, DownpourTraining, GreedyTraining, SteppedTraining
from cotswold.run import RunDirectory
from cotswold.training.strategies.phases import Epochs

NAME = "extended.json"
_FORMAT = 1
_UNPHASED = (BatchTraining, DownpourTraining)
EPOCHS_MAX = 1e6
"""The limit that recipes have."""


def epochs_of(recipe: Recipe) -> Epochs:
    """Return the recipe's epochs: one per stack for `greedy`, one number otherwise.

    The result is empty for `batch`, which counts iterations, and `downpour`, which has no schedule.
    """
    if isinstance(recipe.training, _UNPHASED):
        return ()
    general = recipe.training.epochs
    if isinstance(recipe.training, GreedyTraining):
        return tuple(stack.epochs or general for stack in recipe.network.stacks)
    return (general,)


def apply_extension(requested: Recipe, saved: Recipe, run: RunDirectory) -> tuple[Recipe, tuple[Epochs, ...]]:
    """Return the recipe with the run's original epochs, and the totals of all extensions, the new one
    included.

    If no epochs, or the same total, are requested, the run is unchanged. Raises RunError if fewer epochs are
    requested, MachineError if the record of extensions is damaged.
    """
    if isinstance(requested.training, _UNPHASED) or isinstance(saved.training, _UNPHASED):
        return requested, ()  # without a schedule, more epochs need no new phase
    noted, began, asks = read(run), epochs_of(saved), epochs_of(requested)
    if any(len(total) != len(began) for total in noted):
        raise _damaged(run, "is of a run with more or fewer stacks")
    last = noted[-1] if noted else began
    requested = _with_epochs(requested, saved)
    if asks in (began, last) or len(asks) != len(began):  # other stacks raise an error elsewhere
        return requested, noted
    if any(new < old for new, old in zip(asks, last, strict=True)):
        resume_command = (
            f"cotswold train --run {run.path} --resume"
            if saved.network.module is None
            else "resume=True without epochs"
        )
        raise RunError(
            f"the run in {run.path} is trained for {_listed(last)} epochs, but {_listed(asks)} were "
            "requested; a run can only be extended: request more, or choose another directory; to resume "
            f"it without changes use: {resume_command}"
        )
    return requested, (*noted, asks)


def read(run: RunDirectory) -> tuple[Epochs, ...]:
    """Return the total epochs of each extension, in order; raises MachineError if the record is damaged."""
    path = run.path / NAME
    try:
        content = read_object(path)
        if (found := content.get("format")) != _FORMAT:
            raise MalformedError(describe_format_error(found, _FORMAT))
        totals = [_epochs(each) for each in take(content, "epochs", list)]
        for before, after in pairwise(totals):
            if len(before) != len(after) or any(new < old for old, new in zip(before, after, strict=True)):
                raise MalformedError("holds epochs that do not follow one another")
    except FileNotFoundError:
        return ()
    except (OSError, MalformedError) as error:
        said = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise _damaged(run, said) from error
    return tuple(totals)


def _damaged(run: RunDirectory, said: str) -> MachineError:
    return MachineError(
        f"{run.path / NAME} {said}; copy it again, or remove it and request the same epochs again "
        "(training.epochs)"
    )


def record_totals(run: RunDirectory, totals: Sequence[Epochs]) -> bool:
    """Record the totals and return True if they are new; the caller must hold the run's lock."""
    if list(totals) == list(read(run)):
        return False
    path = run.path / NAME
    with disk_errors(path, MachineError):
        replace_file(path, (json.dumps({"format": _FORMAT, "epochs": totals}) + "\n").encode())
    return True


def stages(recipe: Recipe, totals: Sequence[Epochs]) -> list[Epochs]:
    """Return the epochs of the recipe, followed by the epochs that each extension adds."""
    before, found = epochs_of(recipe), [epochs_of(recipe)]
    for total in totals:
        found.append(tuple(new - old for new, old in zip(total, before, strict=True)))
        before = total
    return found


def _with_epochs(wanted: Recipe, kept: Recipe) -> Recipe:
    """Return a recipe with the epochs of another one, if both have the same number of stacks."""
    ours, theirs = wanted.network.stacks, kept.network.stacks
    if len(ours) == len(theirs):
        stacks = [
            stack.model_copy(update={"epochs": other.epochs})
            for stack, other in zip(ours, theirs, strict=True)
        ]
        wanted = wanted.model_copy(update={"network": wanted.network.model_copy(update={"stacks": stacks})})
    assert isinstance(kept.training, SteppedTraining), "the caller excluded the other strategies"
    training = wanted.training.model_copy(update={"epochs": kept.training.epochs})
    return wanted.model_copy(update={"training": training})


def _epochs(value: object) -> Epochs:
    if not isinstance(value, list) or not all(
        type(each) in (int, float) and 0 < each <= EPOCHS_MAX for each in value
    ):
        raise MalformedError("does not hold numbers of epochs")
    return tuple(float(each) for each in value)


def _listed(epochs: Epochs) -> str:
    return ", ".join(f"{each:g}" for each in (epochs if len(set(epochs)) > 1 else epochs[:1]))
