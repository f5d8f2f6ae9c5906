"""Learning rates of the updates: the schedule of a recipe, or a scheduler of torch.

Knows: when a scheduler takes a step. Does not know: networks, gradients, checkpoints.
"""

from __future__ import annotations

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from cotswold.errors import UserError
from cotswold.optim import rate_at
from cotswold.recipe.schema import SupervisedTraining
from cotswold.training.components import Components
from cotswold.training.per_epoch import PerEpoch

RATE = "learning_rate"
"""The field of step events with the rate of the first group; ``learning_rate.NAME`` is that of a group."""
_EXAMPLE = "lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)"


class LearningRates:
    """The learning rates of an optimiser's groups.

    Without a scheduler, the recipe's schedule sets the rate of a named optimiser, and the rates of a
    program's optimiser stay as they are.

    Args:
        optimizer: The optimiser.
        training: The settings.
        components: The program's optimiser and scheduler.
    """

    def __init__(self, optimizer: Optimizer, training: SupervisedTraining, components: Components) -> None:
        self._optimizer, self._training = optimizer, training
        self._is_named = components.optimizer is None
        self._per_epoch = isinstance(components.scheduler, PerEpoch)
        self.scheduler = None if components.scheduler is None else _made(components.scheduler, optimizer)

    @property
    def name(self) -> str:
        """The name of the schedule for events."""
        if self.scheduler is not None:
            return type(self.scheduler).__name__
        return self._training.schedule if self._is_named else "constant"

    def before_step(self, step: int, steps: int) -> dict[str, float]:
        """Set the rates of a step of a phase; return that of the first group, and of each if several, by the
        names of their fields in step events.
        """
        if self.scheduler is None and self._is_named:
            training = self._training
            rate = rate_at(step, steps, training.learning_rate, training.schedule, training.warmup)
            for group in self._optimizer.param_groups:
                group["lr"] = rate
        rates = rates_of(self._optimizer)
        several = {f"{RATE}.{name}": rate for name, rate in rates.items()} if len(rates) > 1 else {}
        return {RATE: float(self._optimizer.param_groups[0]["lr"]), **several}

    def after_step(self, is_epoch_end: bool, *, is_skipped: bool = False) -> None:
        """Take a step of a scheduler that follows updates or, if one ended, epochs.

        A skipped update, whose gradient overflowed, does not count as an update.
        """
        if self.scheduler is None or isinstance(self.scheduler, ReduceLROnPlateau):
            return
        if is_epoch_end if self._per_epoch else not is_skipped:
            try:
                self.scheduler.step()
            except ValueError as error:  # such as OneCycleLR beyond its last step
                raise UserError(
                    f"the scheduler {type(self.scheduler).__name__} cannot take another step ({error}); give "
                    "it as many steps as the run has updates, or train for fewer epochs"
                ) from error

    def after_validation(self, loss: float | None) -> None:
        """Pass a validation loss to a scheduler that follows it; None if there are no validation samples."""
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            return
        if loss is None:
            raise UserError(
                "ReduceLROnPlateau follows the validation loss, but there is no validation; give validation, "
                "a data set or a fraction, or use another scheduler"
            )
        self.scheduler.step(loss)


def rates_of(optimizer: Optimizer) -> dict[str, float]:
    """Return the present rate of each group by its key ``name``, else ``group_0``, ``group_1`` and so on.

    A name that several groups have gets the number of the group.
    """
    names = [str(group.get("name", f"group_{index}")) for index, group in enumerate(optimizer.param_groups)]
    return {
        name if names.count(name) == 1 else f"{name}_{index}": float(group["lr"])
        for index, (name, group) in enumerate(zip(names, optimizer.param_groups, strict=True))
    }


def _made(source: object, optimizer: Optimizer) -> LRScheduler:
    if isinstance(source, LRScheduler) or not callable(source):
        raise UserError(
            f"scheduler must be a function that makes a scheduler of the optimiser, such as {_EXAMPLE}; got "
            f"{source!r:.80}"
        )
    try:
        found = source(optimizer)
    except (TypeError, ValueError, KeyError) as error:
        raise UserError(
            f"the scheduler cannot be made of the optimiser {type(optimizer).__name__} ({error}); give a "
            f"function that takes the optimiser alone, such as {_EXAMPLE}"
        ) from error
    if not isinstance(found, LRScheduler):
        raise UserError(
            f"the function for scheduler returned {found!r:.80}; it must return a scheduler of "
            "torch.optim.lr_scheduler"
        )
    if found.optimizer is not optimizer:
        raise UserError(
            f"the function for scheduler returned a {type(found).__name__} of another optimiser, which would "
            "change no learning rate of the run; make it of the optimiser that the function receives: "
            f"{_EXAMPLE}"
        )
    return found
