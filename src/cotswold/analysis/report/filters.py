"""Report section with the filters of every stack as images.

Knows: networks of stacks, filters as tiles. Does not know: events, evaluations.

Filters of the first stack are shown directly. Filters of higher stacks have too many channels; the image with
the largest response of the neuron is shown instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cotswold.analysis.filters import filter_tile, places
from cotswold.analysis.images import contact_sheet, png_uri, signed
from cotswold.analysis.layers import Layer, StackLayers
from cotswold.analysis.report.blocks import Block, Figure, FigureGrid, Image, Missing, PageSection, Paragraph
from cotswold.analysis.report.noise import noise_share
from cotswold.analysis.selectivity.optimal_stimuli import Ascent, optimal_stimuli
from cotswold.analysis.unwhiten import unwhitened
from cotswold.data import Transform
from cotswold.nn import SparseAutoencoderStack, StackNetwork
from cotswold.ui.words import percent

_FILTERS = 64
_STIMULI = 16
_ASCENT = Ascent(steps=30, starts=1, batch=16)
"""Settings that are enough to show a shape; profiles of neurons use more."""


def filters(network: StackNetwork | None, transform: Transform | None, run: str) -> PageSection:
    """Return a section with one contact sheet per stack."""
    if network is None:
        text = (
            "No checkpoint of this run could be read, so no filters can be shown. Once a checkpoint exists, "
            "run"
        )
        return PageSection("Filters", "filters", [Missing(text, f"cotswold report {run}")])
    stacks: list[SparseAutoencoderStack] = list(network.stacks)
    first = stacks[0].geometry.filters
    tiles = [filter_tile(stacks[0], place) for place in places(first.grid, first.neurons, _FILTERS)]
    alt = "filters of stack 1, one tile each"
    caption = f"Stack 1: {len(tiles)} filters."
    noise = None if transform is None else noise_share(stacks[0], transform.preparation)
    if noise is not None:
        caption += (
            f" {percent(noise)} of all filters are noise: they have power at frequencies that images lack."
        )
    figures = [Figure(Image(png_uri(contact_sheet(tiles)), alt), caption)]
    for index in range(1, len(stacks)):
        figures.append(_stimuli(network, stacks, index, transform))
    note = Paragraph(
        "Filters of the first stack as they act on prepared images. Filters of higher stacks have too many "
        "channels to be shown; instead the image with their largest response is shown"
        + (", with whitening undone." if transform is not None and transform.whitening is not None else "."),
        "note",
    )
    blocks: list[Block] = [FigureGrid(figures, "sheets")]
    return PageSection("Filters", "filters", [*blocks, note] if len(stacks) > 1 else blocks)


def _stimuli(
    network: StackNetwork, stacks: Sequence[SparseAutoencoderStack], index: int, transform: Transform | None
) -> Figure:
    layer, shape = stacks[index].geometry.filters, stacks[0].geometry.input
    neurons = []
    for place in places(layer.grid, layer.neurons, _STIMULI):
        row, column, depth = np.unravel_index(place.neuron, (layer.rows, layer.columns, layer.depth))
        y, x = place.block_y * layer.rows + int(row), place.block_x * layer.columns + int(column)
        neurons.append((int(depth), y, x))
    respond = StackLayers(network, [Layer(index, "filters")])
    found = optimal_stimuli(
        respond.first, (shape.channels, shape.height, shape.width), neurons, ascent=_ASCENT
    )
    pictures = found.pictures.float().cpu().numpy()
    if transform is not None:
        pictures = unwhitened(pictures, transform)
    sheet = contact_sheet([signed(one) for one in pictures])
    alt = f"images with the largest responses of filters of stack {index + 1}"
    return Figure(Image(png_uri(sheet), alt), f"Stack {index + 1}: optimal images of {len(neurons)} filters.")
