"""Report section with contact sheets of a machine-printed Japanese data set.

Knows: the sheets of a data set and their contents. Does not know: how they are made, runs.
"""

from __future__ import annotations

from cotswold.analysis.images import png_file_uri
from cotswold.analysis.report.blocks import Figure, Image, PageSection
from cotswold.data.datasets.japanese_ocr import sheets_of
from cotswold.recipe import Recipe, expand
from cotswold.recipe.schema import VectorData

_CAPTIONS = {
    "originals-patterns": "Scans from which training samples are generated, 20 x 20 grey",
    "transformed": "Training samples: each scan of the first row, then thickened, thinned, shifted, "
    "blurred and with noise, one column per scan",
    "degradations-patterns": "Held out: scans with degradations that training does not contain",
    "families-patterns": "Held out: whole families of typefaces",
    "faces": "The typefaces, one per row",
}


def printed_set(recipe: Recipe) -> PageSection | None:
    """Return None for other data, and for a data set that no longer exists."""
    data = recipe.data
    if not isinstance(data, VectorData) or data.source is None:
        return None
    found = sheets_of(expand(data.source))
    figures = [
        Figure(Image(png_file_uri(found[name]), caption), caption)
        for name, caption in _CAPTIONS.items()
        if name in found
    ]
    return PageSection("Images of the data set", "set", figures) if figures else None
