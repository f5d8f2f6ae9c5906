"""Report section on classifiers that learn from few labelled images.

Knows: the results of an evaluation. Does not know: networks, events.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotswold.analysis.plots import Line, plot
from cotswold.analysis.report.blocks import (
    Block,
    Details,
    Drawing,
    Figure,
    FigureGrid,
    Heading,
    PageSection,
    Paragraph,
    Table,
    TableCell,
    row,
)
from cotswold.analysis.report.evaluation import layer_title
from cotswold.analysis.selectivity.few_label_results import PIXELS, FewLabels, LabelCurve
from cotswold.analysis.selectivity.results import THIS_NETWORK, Evaluation
from cotswold.ui.format import count, percent


def few_labels(evaluation: Evaluation | None) -> PageSection | None:
    """Return a plot and a table of each object; None if no test had few labels."""
    measured = [
        (found.name, found.few_labels)
        for found in (evaluation.objects if evaluation else ())
        if found.few_labels is not None
    ]
    blocks: list[Block] = []
    for number, (name, few) in enumerate(measured):
        if len(measured) > 1:
            blocks.append(Heading(name.capitalize()))
        said = " ".join(f"{sentence[:1].upper()}{sentence[1:]}." for sentence in few.sentences(name))
        blocks += [Paragraph(said), _plot(number, few), _table(few)]
        blocks += [_note(few), _every_layer(few)]
    return PageSection("Few labels", "few-labels", blocks) if blocks else None


def headline(name: str, few: FewLabels) -> list[tuple[str, str]]:
    """Return the best accuracy with the middle number of labels, and that of this network, with labels.

    Args:
        name: name of the object.
        few: the results.
    """
    at, curves = few.shown, few.best_curves
    best = max(curves, key=lambda origin: curves[origin].means[at])
    labels = f"{few.labels[at]} label{'s' if few.labels[at] > 1 else ''} per class"
    return [
        (percent(curves[origin].means[at]), f"accuracy for {name}, {labels}: {origin}")
        for origin in dict.fromkeys((best, THIS_NETWORK))
    ]


def _plot(number: int, few: FewLabels) -> FigureGrid:
    lines = [
        Line(
            origin,
            few.labels,
            [100 * mean for mean in curve.means],
            colour,
            dots=True,
            dashed=origin == PIXELS,
        )
        for colour, (origin, curve) in enumerate(few.best_curves.items())
    ]
    drawn = plot(
        f"few-labels-{number}",
        lines,
        x="labelled images of each class",
        y="balanced accuracy, %",
        x_ticks=few.labels,
    )
    return FigureGrid([Figure(Drawing(drawn), "Accuracy by the number of labelled images")])


def _table(few: FewLabels) -> Table:
    body = []
    winners = [few.winners(index) for index in range(len(few.labels))]
    for origin, curve in few.best_curves.items():
        best = [origin in each for each in winners]
        body.append([*row(_title(curve)), *_cells(curve, best)])
    return Table(["Features", *_headings(few)], body)


def _title(curve: LabelCurve) -> str:
    return f"{curve.origin}, {layer_title(curve.layer)}" if curve.layer else curve.origin


def _headings(few: FewLabels) -> list[str]:
    return [f"{each} label{'s' if each > 1 else ''}" for each in few.labels]


def _cells(curve: LabelCurve, best: Sequence[bool]) -> list[TableCell]:
    figures = zip(curve.means, curve.spreads, best, strict=True)
    return [
        TableCell(percent(mean), f"± {100 * spread:.1f}", best=is_best) for mean, spread, is_best in figures
    ]


def _note(few: FewLabels) -> Paragraph:
    return Paragraph(
        "Each draw labels some images of each class at random. Every other image is assigned to the class "
        "whose mean features are nearest. Figures: mean of the accuracies on both classes (guessing gives "
        f"50 %), mean ± standard deviation over {few.draws} draws, which are the same for all features. "
        "Highlighted: the best, and all whose paired difference from it is below two standard errors. "
        f"Images: {count(few.positives)} with the object, {count(few.negatives)} without. The last stack "
        "represents this network and the k-means dictionary. The best stack represents random filters and "
        "the control. Of the maps of a stack, the better one counts. Pixels are the prepared images.",
        "note",
    )


def _every_layer(few: FewLabels) -> Details:
    body = [
        [*row(_title(curve), count(curve.values)), *_cells(curve, [False] * len(few.labels))]
        for curve in few.curves
    ]
    return Details("Few labels: every layer", Table(["Features", "Values", *_headings(few)], body))
