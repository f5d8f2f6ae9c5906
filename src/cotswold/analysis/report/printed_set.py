"""The section that shows a set of machine-printed Japanese, as its contact sheets.

Knows: which sheets a set has, what each shows. Does not know: how they are made, runs.
"""

from __future__ import annotations

from cotswold.analysis.images import png_file_uri
from cotswold.analysis.report.blocks import Figure, Image, PageSection
from cotswold.data.datasets.japanese_ocr import sheets_of
from cotswold.recipe import Recipe, expand
from cotswold.recipe.schema import VectorData

_CAPTIONS = {
    "originals-patterns": "Scans that patterns for training are made of, 20 x 20 grey",
    "transformed": "Patterns for training: each scan of the first row, then thickened, thinned, shifted, "
    "blurred and with noise, a column a scan",
    "degradations-patterns": "Held out: scans with degradations that training has not",
    "families-patterns": "Held out: whole families of typefaces",
    "faces": "The typefaces, a row each",
}


def printed_set(recipe: Recipe) -> PageSection | None:
    """None for other data, and for a set that is not there any more."""
    data = recipe.data
    if not isinstance(data, VectorData) or data.source is None:
        return None
    found = sheets_of(expand(data.source))
    figures = [
        Figure(Image(png_file_uri(found[name]), caption), caption)
        for name, caption in _CAPTIONS.items()
        if name in found
    ]
    return PageSection("Pictures of the set", "set", figures) if figures else None
