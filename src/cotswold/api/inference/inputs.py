"""Samples of a source, prepared for inference with a run's network.

Knows: the preparation of the run's own samples, unreadable samples. Does not know: networks, the computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cotswold.api.arguments import check_path
from cotswold.ui.display import Display

if TYPE_CHECKING:
    from cotswold.data import AnyTransform, SampleStream, Source, VectorSource
    from cotswold.data.sources.file_names import Labels


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

    def table_notes(self) -> tuple[str, ...]:
        """Return the notes on new categories and unread columns of a table, and report them."""
        from cotswold.data import TableSource

        notes = self.source.notes if isinstance(self.source, TableSource) else ()
        for note in notes:
            self.display.show(note)
        return notes


def open_inputs(source: object, transform: AnyTransform, labels: Labels = "none") -> Source | VectorSource:
    """Open a source of the same kind as a run's samples; a table is matched by the names of its columns.

    Raises SourceError.
    """
    from cotswold.data import VectorTransform, open_evaluation_source
    from cotswold.data.sources.tables import open_like

    preparation = transform.preparation
    if isinstance(transform, VectorTransform) and transform.preparation.table is not None:
        return open_like(transform.preparation.table, source, is_labelled=labels != "none")
    check_path("the source", source)
    return open_evaluation_source(str(source), preparation.kind, labels=labels)
