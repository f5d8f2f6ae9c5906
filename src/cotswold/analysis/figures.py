"""Figures of matplotlib for notebooks and scripts: a run's curves, a stack's filters.

Knows: matplotlib's objects, never pyplot: no backend is chosen, no state is left behind. Does not know:
pages, which draw the same curves and filters.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, sqrt

from matplotlib.figure import Figure

from cotswold.analysis.history import History
from cotswold.analysis.learning import learning_panels
from cotswold.analysis.plots import Palette, draw
from cotswold.analysis.tiles import filter_tile, places
from cotswold.errors import UserError
from cotswold.nn import SparseAutoencoderStack
from cotswold.run import Event, RunDirectory, read_events

_PANEL_INCHES = (4.6, 3.0)
_TILE_INCHES = 0.6
_COLUMNS = 3


def curves(run: RunDirectory | Iterable[Event]) -> Figure:
    """Training and validation curves over steps, one pair of axes for each stack.

    A run that is supervised has one for the loss and one for the accuracy. ``run`` is a run's directory, or
    its events, and may still be in training. Raises UserError where no step is in the log yet, MachineError
    for a log that is damaged.
    """
    history = History.of(read_events(run.events) if isinstance(run, RunDirectory) else run)
    panels = learning_panels(history)
    if not panels:
        raise UserError("nothing has been learnt yet: no step is in the log; call again when there is one")
    columns = min(_COLUMNS, len(panels))
    rows = ceil(len(panels) / columns)
    figure = Figure(figsize=(columns * _PANEL_INCHES[0], rows * _PANEL_INCHES[1]), layout="constrained")
    for number, panel in enumerate(panels, 1):
        axes = figure.add_subplot(rows, columns, number)
        draw(axes, panel.lines, Palette(), x=panel.x, y=panel.y)
        axes.set_title(panel.caption, fontsize="medium")
    return figure


def filters(stack: SparseAutoencoderStack, *, count: int = 64) -> Figure:
    """A grid of ``count`` filters from blocks all over the map, each scaled by itself; grey is 0.

    Filters of one channel are grey, those of three are colours; of more channels, as in every stack above the
    first, the first three principal components are shown. The same filters are shown every time. Raises
    UserError for a count below 1.
    """
    if count < 1:
        raise UserError(f"{count} filters make no figure; ask for 1 or more")
    layer = stack.geometry.filters
    chosen = places(layer.grid, layer.neurons, count)
    columns = ceil(sqrt(len(chosen)))
    rows = ceil(len(chosen) / columns)
    figure = Figure(figsize=(columns * _TILE_INCHES, rows * _TILE_INCHES), layout="constrained")
    for number, place in enumerate(chosen, 1):
        axes = figure.add_subplot(rows, columns, number)
        axes.imshow(filter_tile(stack, place), interpolation="nearest")
        axes.set_axis_off()
    return figure
