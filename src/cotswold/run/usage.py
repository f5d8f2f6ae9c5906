"""What a run did and what it cost.

Knows: samples, FLOPs counted the papers' way (forward and gradient only), seconds, bytes, money. Does not
know: strategies, which all count the same.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from cotswold.errors import CheckpointError
from cotswold.recipe.schema import Price


@dataclass
class Account:
    """Sums over the whole run, resumptions included; ``staleness`` (mean, in updates) where there is any, and
    ``first_loss``, with which the newest phase began."""

    samples: int = 0
    flops: int = 0
    seconds: float = 0.0
    wire_bytes: int = 0
    staleness: float | None = None
    first_loss: float | None = None

    def add(self, *, samples: int = 0, flops: int = 0, seconds: float = 0.0, wire_bytes: int = 0) -> None:
        """Count some more work."""
        self.samples += samples
        self.flops += flops
        self.seconds += seconds
        self.wire_bytes += wire_bytes

    @property
    def flops_per_second(self) -> float | None:
        """FLOP/s; None before any time has passed."""
        return self.flops / self.seconds if self.seconds > 0 else None

    def summary(self, price: Price, rented_seconds: float | None = None) -> dict[str, float | int | None]:
        """Everything counted, with cents per MFLOP/s of bought hardware and dollars for a machine that was
        rented for so many seconds, by default those of training.

        What is not known, for want of a price or of time, is None and never 0.
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
        """What a checkpoint keeps."""
        return asdict(self)

    @classmethod
    def restored(cls, state: object) -> Account:
        """Return the account that a checkpoint has; raises CheckpointError for anything else."""
        if not isinstance(state, dict):
            raise CheckpointError("the checkpoint says nothing of account; it is of another version")
        if not state.keys() <= {each.name for each in fields(cls)}:
            raise CheckpointError("the checkpoint has an account of another version")
        return cls(**state)
