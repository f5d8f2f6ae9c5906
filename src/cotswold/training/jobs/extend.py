"""Runs that are trained further than their recipe says.

Knows: what "more epochs" means for each strategy, where a run notes it, the epochs that it adds. Does not
know: how a phase is trained, files of checkpoints, the terminal.

A run keeps its recipe. Each time that more epochs are asked for, the totals are noted in `prolonged.json`,
and the run gets phases of its own for what is missing: one a stack for `greedy`, one otherwise. The schedule
of a phase spans that phase alone, so its rate rises and falls anew; λ, which rises for random filters, is at
its value from the start; momentum begins at rest, but for `supervised`. Up to where the new phases begin, the
run has the same bits as if it had never been asked for more.
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

NAME = "prolonged.json"
_FORMAT = 1
_UNPHASED = (BatchTraining, DownpourTraining)
EPOCHS_MAX = 1e6
"""As in a recipe."""


def epochs_of(recipe: Recipe) -> Epochs:
    """The epochs that a recipe asks for: of each stack for `greedy`, one number otherwise; none for
    `batch`, which counts iterations, and `downpour`, which has no schedule."""
    if isinstance(recipe.training, _UNPHASED):
        return ()
    general = recipe.training.epochs
    if isinstance(recipe.training, GreedyTraining):
        return tuple(stack.epochs or general for stack in recipe.network.stacks)
    return (general,)


def asked_for(wanted: Recipe, kept: Recipe, run: RunDirectory) -> tuple[Recipe, tuple[Epochs, ...]]:
    """The recipe with the epochs that the run began with, and the totals to which it was or is prolonged.

    Whoever asks for nothing, or again for the last total, prolongs nothing. Raises RunError where fewer
    epochs are asked for, MachineError where the run's note is damaged.
    """
    if isinstance(wanted.training, _UNPHASED) or isinstance(kept.training, _UNPHASED):
        return wanted, ()  # more of them are no new phase: there is no schedule
    noted, began, asks = read(run), epochs_of(kept), epochs_of(wanted)
    if any(len(total) != len(began) for total in noted):
        raise _damaged(run, "is of a run with more or fewer stacks")
    last = noted[-1] if noted else began
    wanted = _with_epochs(wanted, kept)
    if asks in (began, last) or len(asks) != len(began):  # of other stacks, which others complain of
        return wanted, noted
    if any(new < old for new, old in zip(asks, last, strict=True)):
        goes_on = (
            f"cotswold train --run {run.path} --resume"
            if kept.network.module is None
            else "resume=True without epochs"
        )
        raise RunError(
            f"the run in {run.path} is trained for {_listed(last)} epochs, and {_listed(asks)} are fewer; "
            "a run can only be prolonged: give more, or choose another directory; it goes on as it was "
            f"begun by: {goes_on}"
        )
    return wanted, (*noted, asks)


def read(run: RunDirectory) -> tuple[Epochs, ...]:
    """The totals to which a run was prolonged, in order; raises MachineError where the note is damaged."""
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
        f"{run.path / NAME} {said}; copy it again, or remove it and ask for the same epochs again "
        "(training.epochs)"
    )


def note(run: RunDirectory, totals: Sequence[Epochs]) -> bool:
    """Keep the totals, for whoever has the run's lock; whether there is a new one."""
    if list(totals) == list(read(run)):
        return False
    path = run.path / NAME
    with disk_errors(path, MachineError):
        replace_file(path, (json.dumps({"format": _FORMAT, "epochs": totals}) + "\n").encode())
    return True


def stages(recipe: Recipe, totals: Sequence[Epochs]) -> list[Epochs]:
    """The epochs that the recipe asks for, and for each total those that are missing then."""
    before, found = epochs_of(recipe), [epochs_of(recipe)]
    for total in totals:
        found.append(tuple(new - old for new, old in zip(total, before, strict=True)))
        before = total
    return found


def _with_epochs(wanted: Recipe, kept: Recipe) -> Recipe:
    """A recipe that asks for the epochs of another one, if they have as many stacks."""
    ours, theirs = wanted.network.stacks, kept.network.stacks
    if len(ours) == len(theirs):
        stacks = [
            stack.model_copy(update={"epochs": other.epochs})
            for stack, other in zip(ours, theirs, strict=True)
        ]
        wanted = wanted.model_copy(update={"network": wanted.network.model_copy(update={"stacks": stacks})})
    assert isinstance(kept.training, SteppedTraining), "asked_for left others out"
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
