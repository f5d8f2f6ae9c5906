"""The samples of a source that a run's network is asked about.

Knows: how a source is read as the run's own samples were, what could not be read. Does not know: networks,
what is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cotswold.ui.display import Display

if TYPE_CHECKING:
    from cotswold.data import SampleStream, Source, VectorSource


@dataclass(frozen=True, kw_only=True)
class AskedSamples:
    """A source, its samples in batches as the network wants them, and where the network is."""

    source: Source | VectorSource
    samples: SampleStream
    device: str
    display: Display

    def left_out(self) -> tuple[str, ...]:
        """Samples that could not be read, which are said as well."""
        for reason in self.samples.broken:
            self.display.say(f"left out: {reason}")
        return tuple(self.samples.broken)
