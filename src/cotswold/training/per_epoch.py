"""A marker of schedulers that take a step an epoch.

Knows: the function that makes a scheduler. Does not know: when a run calls it; torch is not imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cotswold.errors import UserError

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


@dataclass(frozen=True)
class PerEpoch:
    """A scheduler that takes one step an epoch, instead of one an update.

    Args:
        make: Makes the scheduler of the optimiser.

    Raises:
        UserError: if ``make`` is not a function.
    """

    make: Callable[[Optimizer], LRScheduler]

    def __post_init__(self) -> None:
        """Raise UserError for something other than a function."""
        if not callable(self.make):
            raise UserError(
                f"PerEpoch({self.make!r:.80}) needs a function of the optimiser, such as "
                "functools.partial(torch.optim.lr_scheduler.StepLR, step_size=1)"
            )

    def __call__(self, optimizer: Optimizer) -> LRScheduler:
        """Return the scheduler of an optimiser."""
        return self.make(optimizer)
