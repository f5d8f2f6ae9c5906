"""Output of `cotswold evaluate`.

Knows: the tables of selectivity and of confusion. Does not know: how figures are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cotswold.ui.terminal import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from cotswold.analysis import Classification, Evaluation, FewLabels, ObjectSelectivity, Regression
    from cotswold.analysis.selectivity.scores import LayerSelectivity

_MAX_CONFUSION_CLASSES = 12
"""Largest number of classes for a full confusion table; with more, the most frequent mistakes are listed."""
_MISTAKES = 10


def print_selectivity(evaluation: Evaluation) -> None:
    """Print a table like the paper's Table 2, with held-out accuracies, and the best of each object."""
    from rich.table import Table

    table = Table(title="best neuron: accuracy on all images / on held-out halves", title_justify="left")
    for heading in ("object", "layer", "guess", "random filters", "k-means", "control", "this network", "±"):
        table.add_column(heading, justify="left" if heading in ("object", "layer") else "right")
    for row in evaluation.objects:
        for layer in row.network:
            baselines = [
                _describe_layer(_layer_by_name(layers, layer.layer))
                for layers in (row.random, row.dictionary, row.control)
            ]
            figures = [f"{row.guess:.3f}", *baselines, _describe_layer(layer), f"{layer.spread:.3f}"]
            table.add_row(printable(row.name), layer.layer, *figures)
    _print(table, [_describe_object(row) for row in evaluation.objects])
    measured = [(row.name, row.few_labels) for row in evaluation.objects if row.few_labels is not None]
    for name, few in measured:
        _print(_few_label_table(name, few), [])
    for name, few in measured:
        for sentence in few.sentences(name):
            print(printable(sentence))


def _few_label_table(name: str, few: FewLabels) -> Table:
    """Return the accuracy by the number of labelled images, a row for each kind of features."""
    from rich.table import Table

    title = f"{printable(name)}: accuracy with few labels of each class, in %, ± over {few.draws} draws"
    table = Table(title=title, title_justify="left")
    table.add_column("features of")
    for count in few.labels:
        table.add_column(f"{count} label{'s' if count > 1 else ''}", justify="right")
    for origin, curve in few.best_curves.items():
        layer = f" ({curve.layer})" if curve.layer else ""
        figures = zip(curve.means, curve.spreads, strict=True)
        table.add_row(
            f"{origin}{layer}", *(f"{100 * mean:.1f} ± {100 * spread:.1f}" for mean, spread in figures)
        )
    return table


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
    from rich.table import Table

    print(f"{found.split}: {found.accuracy:.2%} of {found.samples} samples")
    if len(found.classes) > _MAX_CONFUSION_CLASSES:
        _print(_mistake_table(found), [])
        return
    print("confusion: rows are true classes, columns are predictions")  # longer than a narrow table
    table = Table()
    table.add_column("")
    classes = [*map(printable, found.classes)]
    for name in (*classes, "right"):
        table.add_column(name, justify="right")
    for label, row in enumerate(found.confusion):
        right = f"{row[label] / sum(row):.1%}" if sum(row) else ""
        table.add_row(classes[label], *(str(value) for value in row), right)
    _print(table, [])


def print_errors(found: Regression) -> None:
    """Print the mean squared error, its root and the explained variance of each regression target."""
    from rich.table import Table

    print(f"{found.split}: squared loss {found.loss:.5g} over {found.samples} samples")
    table = Table()
    for heading in ("target", "mean squared error", "RMSE", "explained"):
        table.add_column(heading, justify="right")
    figures = zip(found.names, found.squared_error, found.rmse, found.explained, strict=True)
    for name, error, root, part in figures:
        table.add_row(printable(name), f"{error:.5g}", f"{root:.5g}", "" if part is None else f"{part:.1%}")
    _print(table, [])


def _mistake_table(found: Classification) -> Table:
    from rich.table import Table

    table = Table(title="the most frequent mistakes (all of them: --json)", title_justify="left")
    for heading in ("true class", "predicted", "samples"):
        table.add_column(heading, justify="right" if heading == "samples" else "left")
    for count, truth, answer in found.mistakes[:_MISTAKES]:
        table.add_row(printable(truth), printable(answer), str(count))
    return table


def _print(table: Table, sentences: Iterable[str]) -> None:
    from rich.console import Console

    console: Console = Console(markup=False, emoji=False)  # class names may contain markup
    (console if console.is_terminal else Console(width=120, markup=False, emoji=False)).print(table)
    for sentence in sentences:
        print(printable(sentence))


def _layer_by_name(layers: Sequence[LayerSelectivity], name: str) -> LayerSelectivity | None:
    return next((layer for layer in layers if layer.layer == name), None)


def _describe_layer(layer: LayerSelectivity | None) -> str:
    return "" if layer is None else f"{layer.best[0].accuracy:.3f} / {layer.held_out:.3f}"
