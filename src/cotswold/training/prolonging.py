"""Runs that are trained further than their recipe says.

Knows: what "more epochs" means for each strategy, where a run notes it, the phases that it adds. Does not
know: how a phase is trained, files of checkpoints, the terminal.

A run keeps its recipe. Each time that more epochs are asked for, the totals are noted in `prolonged.json`,
and the run gets phases of its own for what is missing: one a stack for `greedy`, one otherwise. The schedule
of a phase spans that phase alone, so its rate rises and falls anew; λ, which rises for random filters, is at
its value from the start; momentum begins at rest, but for `supervised`. Up to where the new phases begin, the
run has the same bits as if it had never been asked for more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Protocol

from torch import Tensor

from cotswold.checkpoint import Checkpoint, Piece, SealedPiece
from cotswold.errors import MachineError, RunError
from cotswold.files import MalformedError, disk_errors, read_object, replace_file, take
from cotswold.recipe import Recipe
from cotswold.run import RunDirectory
from cotswold.training.strategy import Batch, Measured, Strategy

NAME = "prolonged.json"
_FORMAT = 1
EPOCHS_MAX = 1e6
"""As in a recipe."""

Epochs = tuple[float, ...]
"""Epochs in all of every phase of a recipe: one a stack for `greedy`, one otherwise."""


def epochs_of(recipe: Recipe) -> Epochs:
    """The epochs that a recipe asks for."""
    general = recipe.training.epochs
    if recipe.training.strategy == "greedy":
        return tuple(stack.epochs or general for stack in recipe.network.stacks)
    return (general,)


def asked_for(wanted: Recipe, kept: Recipe, run: RunDirectory) -> tuple[Recipe, tuple[Epochs, ...]]:
    """The recipe with the epochs that the run began with, and the totals to which it was or is prolonged.

    Whoever asks for nothing, or again for the last total, prolongs nothing. Raises RunError where fewer
    epochs are asked for, MachineError where the run's note is damaged.
    """
    noted, began, asks = read(run), epochs_of(kept), epochs_of(wanted)
    if any(len(total) != len(began) for total in noted):
        raise _damaged(run, "is of a run with more or fewer stacks")
    last = noted[-1] if noted else began
    wanted = _with_epochs(wanted, kept)
    if asks in (began, last) or len(asks) != len(began):  # of other stacks, which others complain of
        return wanted, noted
    if any(new < old for new, old in zip(asks, last, strict=True)):
        raise RunError(
            f"the run in {run.path} is trained for {_listed(last)} epochs, and {_listed(asks)} are fewer; "
            "a run can only be prolonged: give more, or choose another --run directory; it goes on as it was "
            f"begun by: cotswold train --run {run.path} --resume"
        )
    return wanted, (*noted, asks)


def read(run: RunDirectory) -> tuple[Epochs, ...]:
    """The totals to which a run was prolonged, in order; raises MachineError where the note is damaged."""
    path = run.path / NAME
    try:
        content = read_object(path)
        if content.get("format") != _FORMAT:
            raise MalformedError("is of a format that this Cotswold does not read")
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
        "(--set training.epochs=N)"
    )


def note(run: RunDirectory, totals: Sequence[Epochs]) -> bool:
    """Keep the totals, for whoever has the run's lock; whether there is a new one."""
    if list(totals) == list(read(run)):
        return False
    path = run.path / NAME
    with disk_errors(path, MachineError):
        replace_file(path, (json.dumps({"format": _FORMAT, "epochs": totals}) + "\n").encode())
    return True


class Prolongable(Strategy, Protocol):
    """A strategy whose phases can come again."""

    recipe: Recipe
    """By which the next call of a phase goes."""

    def go_on(self, phase: int) -> None:
        """Prepare a phase that has been trained before, in the place of `begin`."""
        ...


def prolonged(strategy: Prolongable, recipe: Recipe, totals: Sequence[Epochs]) -> Strategy:
    """The strategy with the phases that the totals add; itself where they add none."""
    return Prolonged(strategy, recipe, totals) if totals else strategy


@dataclass(frozen=True)
class _Part:
    """One phase: which of the strategy's own it is, by which recipe, in which prolongation (0: none)."""

    phase: int
    recipe: Recipe
    stage: int


class Prolonged:
    """A strategy whose phases come again, each with the recipe of its prolongation."""

    def __init__(self, inner: Prolongable, recipe: Recipe, totals: Sequence[Epochs]) -> None:
        self._inner, self._recipe, self._totals = inner, recipe, totals

    @cached_property
    def _parts(self) -> list[_Part]:
        parts = [_Part(phase, self._recipe, 0) for phase in range(self._inner.phases)]
        before = epochs_of(self._recipe)
        for stage, total in enumerate(self._totals, 1):
            more = tuple(new - old for new, old in zip(total, before, strict=True))
            recipe = _for_more(self._recipe, more)
            parts += [_Part(phase, recipe, stage) for phase, epochs in enumerate(more) if epochs > 0]
            before = total
        return parts

    def _at(self, phase: int) -> int:
        """The strategy's own phase, which is that of its own recipe from now on; its last where all are
        over."""
        if phase >= len(self._parts):
            return self._inner.phases
        self._inner.recipe = self._parts[phase].recipe
        return self._parts[phase].phase

    def _steps_before(self, phase: int) -> int:
        """Steps that earlier phases have taken of the same stack."""
        own = self._parts[phase].phase
        return sum(self.steps(each) for each in range(phase) if self._parts[each].phase == own)

    @property
    def phases(self) -> int:
        """Those of the recipe, and those of each prolongation."""
        return len(self._parts)

    @property
    def improved(self) -> bool:
        """See `Strategy`."""
        return self._inner.improved

    @property
    def parameters(self) -> int:
        """See `Strategy`."""
        return self._inner.parameters

    def steps(self, phase: int) -> int:
        """Those of the epochs that are missing."""
        return self._inner.steps(self._at(phase))

    def describe(self, phase: int) -> Mapping[str, object]:
        """As the phase's own; in a prolongation its number, and the steps of the same stack before."""
        described, stage = self._inner.describe(self._at(phase)), self._parts[phase].stage
        if stage == 0:
            return described
        return {**described, "prolongation": stage, "steps_before": self._steps_before(phase)}

    def flops(self, phase: int) -> int:
        """See `Strategy`."""
        return self._inner.flops(self._at(phase))

    def begin(self, phase: int, batch: Batch) -> None:
        """Filters that have learnt keep their gain and α."""
        own = self._at(phase)
        if self._parts[phase].stage == 0:
            self._inner.begin(own, batch)
        else:
            self._inner.go_on(own)

    def advance(self, phase: int, step: int, batch: Batch) -> Measured:
        """See `Strategy`."""
        return self._inner.advance(self._at(phase), step, batch)

    def validate(self, phase: int) -> Measured | None:
        """See `Strategy`."""
        return self._inner.validate(self._at(phase))

    def interval(self, phase: int) -> int:
        """See `Strategy`."""
        return self._inner.interval(self._at(phase))

    def finished(self, phase: int) -> bool:
        """See `Strategy`."""
        return self._inner.finished(self._at(phase))

    def tensors(self, phase: int, step: int) -> dict[str, Tensor]:
        """See `Strategy`."""
        return self._inner.tensors(self._at(phase), step)

    def apart(self, phase: int, step: int) -> Iterable[Piece | SealedPiece]:
        """See `Strategy`."""
        return self._inner.apart(self._at(phase), step)

    def take_up(self, checkpoint: Checkpoint, phase: int, step: int) -> None:
        """See `Strategy`."""
        self._inner.take_up(checkpoint, self._at(phase), step)

    def state(self) -> dict[str, object]:
        """See `Strategy`."""
        return self._inner.state()

    def restored(self, tensors: Mapping[str, Tensor], state: Mapping[str, object]) -> None:
        """See `Strategy`."""
        self._inner.restored(tensors, state)


def _with_epochs(wanted: Recipe, kept: Recipe) -> Recipe:
    """A recipe that asks for the epochs of another one, if they have as many stacks."""
    ours, theirs = wanted.network.stacks, kept.network.stacks
    if len(ours) == len(theirs):
        stacks = [
            stack.model_copy(update={"epochs": other.epochs})
            for stack, other in zip(ours, theirs, strict=True)
        ]
        wanted = wanted.model_copy(update={"network": wanted.network.model_copy(update={"stacks": stacks})})
    training = wanted.training.model_copy(update={"epochs": kept.training.epochs})
    return wanted.model_copy(update={"training": training})


def _for_more(recipe: Recipe, more: Epochs) -> Recipe:
    """The recipe of phases that only take these epochs; λ is at its value throughout."""
    changed: dict[str, object] = {"objective": recipe.objective.model_copy(update={"ramp": 0.0})}
    if recipe.training.strategy == "greedy":
        stacks = [
            stack.model_copy(update={"epochs": epochs})
            for stack, epochs in zip(recipe.network.stacks, more, strict=True)
        ]
        changed["network"] = recipe.network.model_copy(update={"stacks": stacks})
    else:
        changed["training"] = recipe.training.model_copy(update={"epochs": more[0]})
    return recipe.model_copy(update=changed)


def _epochs(value: object) -> Epochs:
    if not isinstance(value, list) or not all(
        type(each) in (int, float) and 0 < each <= EPOCHS_MAX for each in value
    ):
        raise MalformedError("does not hold numbers of epochs")
    return tuple(float(each) for each in value)


def _listed(epochs: Epochs) -> str:
    return ", ".join(f"{each:g}" for each in (epochs if len(set(epochs)) > 1 else epochs[:1]))
