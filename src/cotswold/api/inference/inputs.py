"""Samples of a source, prepared for inference with a run's network.

Knows: the preparation of the run's own samples, unreadable samples. Does not know: networks, the computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cotswold.ui.display import Display

if TYPE_CHECKING:
    from cotswold.data import SampleStream, Source, VectorSource


@dataclass(frozen=True, kw_only=True)
class InferenceInputs:
    """A source, its samples in batches for the network, and the device of the network."""

    source: Source | VectorSource
    samples: SampleStream
    device: str
    display: Display

    def skipped(self) -> tuple[str, ...]:
        """Return the unreadable samples, and report them on the display."""
        for reason in self.samples.broken:
            self.display.show(f"left out: {reason}")
        return tuple(self.samples.broken)
