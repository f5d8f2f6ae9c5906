"""A callback that records the learning rate of each parameter group.

Knows: optimisers of torch. Does not know: schedules, receivers of events.
"""

from __future__ import annotations

from cotswold.errors import UserError
from cotswold.training.callbacks.base import Callback, CallbackContext
from cotswold.training.callbacks.intervals import check_interval


class LRMonitor(Callback):
    """Record the learning rate with which each parameter group took a step, in an event `learning_rates`.

    The fields of the event are ``step``, and ``group_0``, ``group_1`` and so on; a group with the key
    ``name`` has that name instead. Loggers show them as curves.

    Args:
        every: The interval in steps.

    Raises:
        UserError: If ``every`` is not at least 1.
    """

    needs_module = True

    def __init__(self, every: int = 100) -> None:
        self.every = check_interval(every, "LRMonitor")
        self._rates: dict[str, float] = {}

    def on_batch_start(self, context: CallbackContext) -> None:
        """Keep the rates of the coming step: after it, a scheduler has set those of the next one.

        Args:
            context: The state of the run.

        Raises:
            UserError: If the strategy has no optimiser.
        """
        if context.optimizer is None:
            raise UserError("LRMonitor needs a strategy with an optimiser; its step events have the rate")
        self._rates = {
            str(group.get("name", f"group_{index}")): float(group["lr"])
            for index, group in enumerate(context.optimizer.param_groups)
        }

    def on_step_end(self, context: CallbackContext) -> None:
        """Record the rates of the step.

        Args:
            context: The state of the run.
        """
        if context.step % self.every == 0 or context.step == 1:
            context.event("learning_rates", **{**self._rates, "step": context.step})
