"""Python objects of a run that its recipe does not contain.

Knows: which objects a program may give to a run. Does not know: what trains with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from cotswold.run.events import Observer
from cotswold.training.callbacks.base import Callback
from cotswold.training.callbacks.functions import OnEvent, as_callbacks
from cotswold.training.metrics.base import Metric
from cotswold.training.metrics.function_metric import BatchFunction

OptimizerSource = Optimizer | Callable[[Iterable[Tensor]], Optimizer] | Callable[[Any], Optimizer]
"""An optimiser on the module's parameters, or a function that makes one from parameters or groups."""
SchedulerSource = Callable[[Optimizer], LRScheduler]
"""A function that makes a learning-rate scheduler of an optimiser.

The scheduler takes a step after each update; with `PerEpoch`, it takes one after each epoch.
ReduceLROnPlateau gets each validation loss.
"""


@dataclass(frozen=True)
class Components:
    """The objects that a program gives to a run, in addition to its recipe.

    Args:
        optimizer: Replaces the optimiser that the recipe names.
        scheduler: Replaces the schedule that the recipe names.
        metrics: Metrics to measure, in addition to those that the recipe names.
        callbacks: Callbacks, called in this order; a function receives every event.
        loggers: Receivers of events, in addition to those that the recipe names.
    """

    optimizer: OptimizerSource | None = None
    scheduler: SchedulerSource | None = None
    metrics: tuple[Metric | BatchFunction, ...] = ()
    callbacks: Sequence[Callback | OnEvent] = ()
    loggers: tuple[Observer, ...] = ()

    def __post_init__(self) -> None:
        """Wrap functions as callbacks; raises UserError for other objects."""
        object.__setattr__(self, "callbacks", as_callbacks(self.callbacks))
