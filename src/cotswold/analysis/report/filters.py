"""Report section with the filters of every stack as images.

Knows: networks of stacks, filters as tiles. Does not know: events, evaluations.

Filters of the first stack are shown directly. Filters of higher stacks have too many channels; the image with
the largest response of the neuron is shown instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cotswold.analysis.filter_images import choose_filters, filter_tile, undo_whitening
from cotswold.analysis.images import contact_sheet, png_uri, signed
from cotswold.analysis.layers import Layer, StackLayers
from cotswold.analysis.report.blocks import Block, Figure, FigureGrid, Image, Missing, PageSection, Paragraph
from cotswold.analysis.selectivity.optimal_stimuli import Ascent, optimal_stimuli
from cotswold.data import Preparation, Transform
from cotswold.data.preprocessing.whitening import NYQUIST, ROLL_OFF, cosine_radii, cosines
from cotswold.nn import SparseAutoencoderStack, StackNetwork
from cotswold.ui.format import percent

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
    tiles = [filter_tile(stacks[0], place) for place in choose_filters(first.grid, first.neurons, _FILTERS)]
    alt = "filters of stack 1, one tile each"
    caption = f"Stack 1: {len(tiles)} filters."
    noise = None if transform is None else untrained_share(stacks[0], transform.preparation)
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
    for place in choose_filters(layer.grid, layer.neurons, _STIMULI):
        row, column, depth = np.unravel_index(place.neuron, (layer.rows, layer.columns, layer.depth))
        y, x = place.block_y * layer.rows + int(row), place.block_x * layer.columns + int(column)
        neurons.append((int(depth), y, x))
    respond = StackLayers(network, [Layer(index, "filters")])
    found = optimal_stimuli(
        respond.first, (shape.channels, shape.height, shape.width), neurons, ascent=_ASCENT
    )
    images = found.images.float().cpu().numpy()
    if transform is not None:
        images = undo_whitening(images, transform)
    sheet = contact_sheet([signed(one) for one in images])
    alt = f"images with the largest responses of filters of stack {index + 1}"
    return Figure(Image(png_uri(sheet), alt), f"Stack {index + 1}: optimal images of {len(neurons)} filters.")


def untrained_share(stack: SparseAutoencoderStack, preparation: Preparation) -> float | None:
    """Return the fraction of a first stack's filters with power at frequencies that images do not have.

    An untrained filter has the same power at all frequencies, including those beyond the whitened band; a
    filter with at least half as much there counts as noise. None if images are not whitened, or if the band
    excludes less than a tenth of all frequencies: then noise cannot be detected this way.
    """
    layer = stack.geometry.filters
    radii = cosine_radii(layer.y.size, layer.x.size)
    inside = radii <= preparation.whiten_cutoff * NYQUIST * ROLL_OFF
    beyond = 1 - float(inside.mean())
    if not preparation.whiten or beyond < 0.1:
        return None
    noise = total = 0
    for row in stack.filters.detach():  # one row of blocks at a time
        values: NDArray[np.float32] = row.float().cpu().numpy()
        tiles = values.reshape(len(values), layer.y.size, layer.x.size, layer.input.channels, -1)
        spectrum = np.einsum(
            "uy,byxcn,vx->bcnuv", cosines(layer.y.size), tiles, cosines(layer.x.size), optimize=True
        )
        power = np.square(spectrum).sum(1)
        part = power[..., ~inside].sum(-1) / np.maximum(power.sum((-2, -1)), 1e-30)
        noise, total = noise + int((part > beyond / 2).sum()), total + part.size
    return noise / total
