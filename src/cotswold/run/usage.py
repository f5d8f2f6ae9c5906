"""Work and cost of a run.

Knows: samples, FLOPs as the papers count them (forward and gradient only), seconds, bytes, money. Does not
know: strategies; all of them count alike.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from cotswold.errors import CheckpointError
from cotswold.recipe.schema import Price


@dataclass
class Usage:
    """Totals over the whole run, resumptions included.

    Attributes:
        samples: training samples computed.
        flops: floating-point operations of forward and gradient.
        seconds: seconds of training.
        wire_bytes: bytes sent between processes.
        staleness: mean staleness in updates; None for synchronous strategies.
        first_loss: loss at the start of the newest phase; None before its first step.
    """

    samples: int = 0
    flops: int = 0
    seconds: float = 0.0
    wire_bytes: int = 0
    staleness: float | None = None
    first_loss: float | None = None

    def add(self, *, samples: int = 0, flops: int = 0, seconds: float = 0.0, wire_bytes: int = 0) -> None:
        """Add work to the totals.

        Args:
            samples: samples computed.
            flops: floating-point operations.
            seconds: seconds of training.
            wire_bytes: bytes sent.
        """
        self.samples += samples
        self.flops += flops
        self.seconds += seconds
        self.wire_bytes += wire_bytes

    @property
    def flops_per_second(self) -> float | None:
        """FLOP/s of the whole training; None before any time has passed."""
        return self.flops / self.seconds if self.seconds > 0 else None

    def summary(self, price: Price, rented_seconds: float | None = None) -> dict[str, float | int | None]:
        """Return the totals with their cost.

        Args:
            price: price of the machine, from the recipe.
            rented_seconds: rented time in seconds (default: the seconds of training).

        Returns:
            `state`, ``flops_per_second``, ``cents_per_mflops`` of bought hardware, ``dollars`` of rented
            hardware. Unknown values, for lack of a price or of time, are None, never 0.
        """
        seconds = self.seconds if rented_seconds is None else rented_seconds
        rate, bought, rented = self.flops_per_second, price.hardware_dollars, price.rent_dollars_per_hour
        return {
            **self.state(),
            "flops_per_second": rate,
            "cents_per_mflops": 100 * bought / (rate / 1e6) if bought and rate else None,
            "dollars": rented * seconds / 3600 if rented else None,
        }

    def state(self) -> dict[str, float | int | None]:
        """Return the totals as a checkpoint saves them."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: object) -> Usage:
        """Return the totals of a checkpoint.

        Args:
            state: The totals as `state` returned them.

        Raises:
            CheckpointError: if ``state`` is anything else.
        """
        if not isinstance(state, dict):
            raise CheckpointError("the checkpoint has no usage totals; another version wrote it")
        if not state.keys() <= {each.name for each in fields(cls)}:
            raise CheckpointError("the checkpoint has other usage totals; another version wrote it")
        return cls(**state)
