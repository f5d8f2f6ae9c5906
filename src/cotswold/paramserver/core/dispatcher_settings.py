"""What the coordinator of replicas is told once, and what a run that goes on must not give again.

Knows: the fields and their limits. Does not know: what is done by them (`dispatching`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dispatch:
    """What the coordinator of replicas is told once."""

    run: str
    samples: int
    """Of an epoch."""
    size: int
    """The length of the parameters."""
    epochs: int
    rate: float
    """The first."""
    hand: int
    """Samples that are handed out at once, at most."""
    ahead: int
    """With fewer samples than this in hand a replica is handed more."""
    fraction: float = 0.75
    """Of samples, or of replicas, that must be done before an epoch ends."""
    of: str = "samples"
    """Or ``replicas``."""
    warm_samples: int = 0
    """So many are computed by one replica first."""
    order_seconds: float = 0.5
    """How often servers are asked what they have applied."""
    tail_seconds: float = 0.02
    """The same, while replicas wait for the next epoch: the last samples of this one are awaited."""
    beat_seconds: float = 0.5
    silent_seconds: float = 10.0
    """After which a session is over."""
    retry_seconds: float = 2.0
    settings: str = "{}"
    """JSON that replicas are handed."""

    def __post_init__(self) -> None:
        for name in ("samples", "size", "epochs", "hand", "ahead"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be at least 1")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"an epoch of {self.fraction} of all; it must be above 0 and at most 1")
        if self.of not in ("samples", "replicas"):
            raise ValueError(f"a fraction of {self.of!r}; it is one of samples or of replicas")
        if self.warm_samples < 0:
            raise ValueError(f"warm_samples is {self.warm_samples}, and must not be negative")
        for name in ("order_seconds", "tail_seconds", "beat_seconds", "silent_seconds", "retry_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, and must be above 0")


@dataclass(frozen=True)
class Counters:
    """What numbers a run that goes on does not give again."""

    session: int = 0
    """The newest."""
    rates: tuple[tuple[int, float], ...] = ()
    """Learning rates by version; the newest is in force."""
