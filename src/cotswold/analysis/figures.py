"""Matplotlib figures for notebooks and scripts: a run's curves, a stack's filters.

Knows: matplotlib's objects, not pyplot: it selects no backend and leaves no state. Does not know: the report,
which draws the same curves and filters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, sqrt
from textwrap import wrap

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cotswold.analysis.filter_images import FilterPosition, choose_filters, filter_tile, filter_weights
from cotswold.analysis.learning_curves import learning_panels
from cotswold.analysis.plots import Palette, draw
from cotswold.analysis.run_history import History
from cotswold.errors import UserError
from cotswold.nn import SparseAutoencoderStack
from cotswold.run import Event, RunDirectory, read_events

_PANEL_INCHES = (4.6, 3.0)
_TILE_INCHES = 0.6
_COLUMNS = 3
_FILTERS_INCHES, _LINE_INCHES, _LETTERS_INCH = 4.2, 0.2, 13


def curves(run: RunDirectory | Iterable[Event]) -> Figure:
    """Plot training and validation curves over steps.

    A run of stacks has one panel per stack, a supervised run one for the loss and one for the accuracy.

    Args:
        run: a run's directory, or its events; the run may still be in training.

    Returns:
        A matplotlib figure.

    Raises:
        UserError: if the log has no step yet.
        MachineError: if the log is damaged.
    """
    history = History.from_events(read_events(run.events) if isinstance(run, RunDirectory) else run)
    panels = learning_panels(history)
    if not panels:
        raise UserError("the log has no step yet; call again after the first step")
    columns = min(_COLUMNS, len(panels))
    rows = ceil(len(panels) / columns)
    figure = Figure(figsize=(columns * _PANEL_INCHES[0], rows * _PANEL_INCHES[1]), layout="constrained")
    for number, panel in enumerate(panels, 1):
        axes = figure.add_subplot(rows, columns, number)
        draw(axes, panel.lines, Palette(), x=panel.x, y=panel.y)
        axes.set_title(panel.caption, fontsize="medium")
    return figure


def filters(stack: SparseAutoencoderStack, *, count: int = 64, name: str = "the stack") -> Figure:
    """Plot a grid of filters from random positions of the map, each scaled separately; grey is 0.

    Filters of one channel are grey, of three channels coloured; of more channels, as in every stack above the
    first, the first three principal components are shown. Filters that see one pixel, as for vectors and
    frames, are rows of one colour map. Every call shows the same filters.

    Args:
        stack: the stack.
        count: number of filters.
        name: name of the stack in the title.

    Returns:
        A matplotlib figure.

    Raises:
        UserError: if `count` is below 1.
    """
    if count < 1:
        raise UserError(f"count must be at least 1, got {count}")
    layer = stack.geometry.filters
    chosen = choose_filters(layer.grid, layer.neurons, count)
    columns = ceil(sqrt(len(chosen)))
    rows = ceil(len(chosen) / columns)
    total = layer.grid[0] * layer.grid[1] * layer.neurons
    which = f"all {total:,}" if len(chosen) == total else f"{len(chosen):,} of {total:,}"
    drawn = "" if len(chosen) == total else ", from random positions of the map"
    flat = layer.y.size == layer.x.size == 1
    meaning = _ROWS if flat else _colour_legend(layer.input.channels)
    title = f"{which} filters of {name}{drawn}; {meaning}"
    width = max(columns * _TILE_INCHES, _FILTERS_INCHES)
    lines = wrap(title[0].upper() + title[1:], round(width * _LETTERS_INCH))
    height = _PANEL_INCHES[1] if flat else rows * width / columns
    figure = Figure(figsize=(width, height + len(lines) * _LINE_INCHES), layout="constrained")
    figure.suptitle("\n".join(lines), fontsize="small")
    if flat:
        _rows(figure, stack, chosen)
        return figure
    for number, place in enumerate(chosen, 1):
        axes = figure.add_subplot(rows, columns, number)
        axes.imshow(filter_tile(stack, place), interpolation="nearest")
        axes.set_axis_off()
    return figure


_ROWS = "each row is a filter; red is positive, blue negative, white 0"


def _rows(figure: Figure, stack: SparseAutoencoderStack, chosen: Sequence[FilterPosition]) -> None:
    """Draw filters that see one pixel, such as those of vectors: a row per filter, a column per channel."""
    values = np.stack([filter_weights(stack, place)[:, 0, 0] for place in chosen])
    reach = float(np.abs(values).max()) or 1.0
    axes = figure.subplots()
    shown = axes.imshow(
        values, cmap="RdBu_r", vmin=-reach, vmax=reach, aspect="auto", interpolation="nearest"
    )
    axes.set(xlabel="channel, counted from 0", ylabel="filter")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    figure.colorbar(shown)


def _colour_legend(channels: int) -> str:
    """Return the meaning of the colours of tiles."""
    if channels == 1:
        return "mid-grey is 0, white positive"
    if channels == 3:
        return "red, green and blue are its three channels, mid-grey is 0"
    return (
        f"colours show the first three principal components of each filter's {channels} channels, "
        "mid-grey is 0"
    )
