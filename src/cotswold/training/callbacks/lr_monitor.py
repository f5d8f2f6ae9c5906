"""A callback that records the learning rate of each parameter group.

Knows: optimisers of torch. Does not know: schedules, receivers of events.
"""

from __future__ import annotations

from cotswold.errors import UserError
from cotswold.training.callbacks.base import Callback, CallbackContext
from cotswold.training.callbacks.intervals import check_interval
from cotswold.training.learning_rates import RATE, rates_of


class LRMonitor(Callback):
    """Record the learning rate of each parameter group, in an event `learning_rates`.

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

    def on_step_end(self, context: CallbackContext) -> None:
        """Record the rates of the step.

        Args:
            context: The state of the run.

        Raises:
            UserError: If the strategy has no optimiser.
        """
        if context.optimizer is None:
            raise UserError("LRMonitor needs a strategy with an optimiser; its step events have the rate")
        if context.step % self.every == 0 or context.step == 1:
            rates = rates_of(context.optimizer)  # a scheduler may have set those of the next step
            used = {
                name: context.metrics.get(f"{RATE}.{name}" if len(rates) > 1 else RATE, rate)
                for name, rate in rates.items()
            }
            context.event("learning_rates", **{**used, "step": context.step})
