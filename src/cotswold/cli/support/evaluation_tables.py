"""Output of `cotswold evaluate`.

Knows: the tables of selectivity and of confusion. Does not know: how figures are computed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cotswold.cli.support.tables import fits, print_fitting
from cotswold.phrases import counted
from cotswold.ui.terminal import printable

if TYPE_CHECKING:
    from rich.table import Table

    from cotswold.analysis import Classification, Evaluation, FewLabels, ObjectSelectivity, Regression
    from cotswold.analysis.selectivity.scores import LayerSelectivity

_MAX_CONFUSION_CLASSES = 12
"""Largest number of classes for a full confusion table; with more, the most frequent mistakes are listed."""
_MISTAKES = 10


def print_selectivity(evaluation: Evaluation) -> None:
    """Print a table like the paper's Table 2, with held-out accuracies, and the best of each object."""
    rows = []
    for row in evaluation.objects:
        for layer in row.network:
            baselines = [
                _describe_layer(_layer_by_name(layers, layer.layer))
                for layers in (row.random, row.dictionary, row.control)
            ]
            figures = [f"{row.guess:.3f}", *baselines, _describe_layer(layer), f"{layer.spread:.3f}"]
            rows.append([printable(row.name), layer.layer, *figures])
    headings = ["object", "layer", "guess", "random filters", "k-means", "control", "this network", "±"]
    _print("best neuron: accuracy on all images / on held-out halves", headings, rows, left=2)
    for row in evaluation.objects:
        print(printable(_describe_object(row)))
    measured = [(row.name, row.few_labels) for row in evaluation.objects if row.few_labels is not None]
    for name, few in measured:
        _print_few_labels(name, few)
    for name, few in measured:
        for sentence in few.sentences(name):
            print(printable(sentence))


def _print_few_labels(name: str, few: FewLabels) -> None:
    """Print the accuracy by the number of labelled images, a row for each kind of features."""
    title = f"{printable(name)}: accuracy with few labels of each class, in %, ± over {few.draws} draws"
    headings = ["features of", *(counted(count, "label") for count in few.labels)]
    rows = []
    for origin, curve in few.best_curves.items():
        layer = f" ({curve.layer})" if curve.layer else ""
        figures = zip(curve.means, curve.spreads, strict=True)
        rows.append(
            [f"{origin}{layer}", *(f"{100 * mean:.1f} ± {100 * spread:.1f}" for mean, spread in figures)]
        )
    _print(title, headings, rows, left=1)


def _describe_object(row: ObjectSelectivity) -> str:
    """Return a sentence about an object: the best neurons, the accuracy of guessing, the clustering."""
    best = row.best_layers[row.best_model]
    beaten = "" if best.held_out > row.guess else "no neuron is better than guessing, and "
    said = (
        f"{row.name}: {beaten}best held out is {row.best_model}, {best.held_out:.3f} (layer {best.layer}); "
        f"classes weighted {row.weights.positives:.3f} with to {row.weights.negatives:.3f} without, "
        f"so guessing is {row.guess:.3f}"
    )
    made = row.clustering
    if made is not None:
        settled = "converged" if made.converged else "not converged"
        said += f"; k-means {settled} after {made.passes} passes over {made.images} images"
    return said


def show(found: Evaluation | Classification | Regression) -> None:
    """Print the result of an evaluation, with its metrics."""
    from cotswold.analysis import Evaluation, Regression

    if isinstance(found, Evaluation):
        print_selectivity(found)
        return
    if isinstance(found, Regression):
        print_errors(found)
    else:
        print_confusion(found)
    shown = ("accuracy", "loss")  # in the first line
    for name, value in found.metrics.items():
        if name not in shown:
            print(f"{printable(name)}: {'none' if value is None else f'{value:.5g}'}")


def print_confusion(found: Classification) -> None:
    """Print the accuracy and the confusion of classes."""
    print(f"{found.split}: {found.accuracy:.2%} of {found.samples} samples")
    if len(found.classes) > _MAX_CONFUSION_CLASSES:
        _print_mistakes(found)
        return
    classes = [*map(printable, found.classes)]
    headings, rows = ["", *classes, "right"], []
    for label, row in enumerate(found.confusion):
        right = f"{row[label] / sum(row):.1%}" if sum(row) else ""
        rows.append([classes[label], *map(str, row), right])
    truths, answers = ("rows", "columns") if fits(_table(headings, rows)) else ("columns", "rows")
    _print(f"confusion: {truths} are true classes, {answers} are predictions", headings, rows)


def print_errors(found: Regression) -> None:
    """Print the mean squared error, its root and the explained variance of each regression target."""
    print(f"{found.split}: squared loss {found.loss:.5g} over {found.samples} samples")
    rows = []
    figures = zip(found.names, found.squared_error, found.rmse, found.explained, strict=True)
    for name, error, root, part in figures:
        explained = "" if part is None else f"{part:.1%}"
        rows.append([printable(name), f"{error:.5g}", f"{root:.5g}", explained])
    _print("", ["target", "mean squared error", "RMSE", "explained"], rows)


def _print_mistakes(found: Classification) -> None:
    """Print the most frequent mistakes."""
    rows = [
        [printable(truth), printable(answer), str(count)]
        for count, truth, answer in found.mistakes[:_MISTAKES]
    ]
    title = "the most frequent mistakes (all of them: --json)"
    _print(title, ["true class", "predicted", "samples"], rows, left=2)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: int = 0) -> Table:
    """Return a table with some ``left`` columns aligned at the left, and others at the right."""
    from rich.table import Table

    table = Table()
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index < left else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _print(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], left: int = 0) -> None:
    """Print a title and a table, in the columns of the terminal."""
    from rich.console import Console

    if title:
        print(textwrap.fill(title, Console().width))
    print_fitting(_table(headings, rows, left), headings, rows)


def _layer_by_name(layers: Sequence[LayerSelectivity], name: str) -> LayerSelectivity | None:
    return next((layer for layer in layers if layer.layer == name), None)


def _describe_layer(layer: LayerSelectivity | None) -> str:
    return "" if layer is None else f"{layer.best[0].accuracy:.3f} / {layer.held_out:.3f}"
