"""Settings of the coordinator of replicas, and counters that a resumed run must continue.

Knows: the fields and their limits. Does not know: their use (`paramserver.core.dispatcher`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dispatch:
    """Settings of the coordinator of replicas."""

    run: str
    samples: int
    """Samples per epoch."""
    size: int
    """Length of the parameters."""
    epochs: int
    rate: float
    """Initial learning rate."""
    hand: int
    """Maximum samples per assignment."""
    ahead: int
    """A replica with fewer assigned samples than this receives more."""
    fraction: float = 0.75
    """Fraction of samples, or of replicas, that must be done before an epoch ends."""
    of: str = "samples"
    """Unit of ``fraction``: ``samples`` or ``replicas``."""
    warm_samples: int = 0
    """Number of samples that a single replica computes first."""
    order_seconds: float = 0.5
    """Seconds between two coordinator states, which ask servers for their applied samples."""
    tail_seconds: float = 0.02
    """The same, while replicas wait for the last samples of an epoch."""
    beat_seconds: float = 0.5
    silent_seconds: float = 10.0
    """Seconds until a silent replica's session ends."""
    retry_seconds: float = 2.0
    settings: str = "{}"
    """Settings of the replicas, as JSON."""

    def __post_init__(self) -> None:
        for name in ("samples", "size", "epochs", "hand", "ahead"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, got {self.fraction}")
        if self.of not in ("samples", "replicas"):
            raise ValueError(f"of must be 'samples' or 'replicas', got {self.of!r}")
        if self.warm_samples < 0:
            raise ValueError(f"warm_samples must be at least 0, got {self.warm_samples}")
        for name in ("order_seconds", "tail_seconds", "beat_seconds", "silent_seconds", "retry_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")


@dataclass(frozen=True)
class Counters:
    """Numbers that a resumed run must not assign again."""

    session: int = 0
    """Newest session."""
    rates: tuple[tuple[int, float], ...] = ()
    """(version, learning rate); the newest is in force."""
