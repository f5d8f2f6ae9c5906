"""Report sections on results: the selectivity table, profiles of neurons, errors of a classifier.

Knows: evaluations. Does not know: networks, events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from cotswold.analysis.classification import Classification, Example
from cotswold.analysis.layers import Layer
from cotswold.analysis.regression import Regression
from cotswold.analysis.report.blocks import (
    Block,
    Details,
    Figure,
    FigureGrid,
    FigureWithText,
    Heading,
    Image,
    Missing,
    PageSection,
    Paragraph,
    Table,
    TableCell,
    row,
)
from cotswold.analysis.selectivity.results import (
    THIS_NETWORK,
    Evaluation,
    NeuronProfile,
    ObjectSelectivity,
    TopImage,
)
from cotswold.analysis.selectivity.scores import LayerSelectivity
from cotswold.ui.format import count, percent, three_figures


def selectivity(evaluation: Evaluation | None, run: str) -> PageSection:
    """Return the table in the form of the paper's Table 2, and a longer one for every layer."""
    if evaluation is None or not evaluation.objects:
        text = "No neuron has been tested yet. To test neurons on images with and without an object, run"
        command = f"cotswold evaluate {run} --positives A --negatives B"
        return PageSection("Selectivity", "selectivity", [Missing(text, command)])
    objects = evaluation.objects
    layers = list(dict.fromkeys(layer.layer for found in objects for layer in found.network))
    baselines = {name: of for name, of in _COLUMNS.items() if any(of(found) for found in objects)}
    oracle = any(found.oracle for found in objects)
    head = ["Object", "Guess", *_stack_headings(layers), *baselines, *(["Mean image"] if oracle else [])]
    body = []
    for found in objects:
        best = found.best_layers[found.best_model]
        by_name = {layer.layer: layer for layer in found.network}
        cells = row(found.name, percent(found.guess))
        cells += [_cell(by_name.get(name), best) for name in layers]
        cells += [_cell(_best(of(found)), best) for of in baselines.values()]
        cells += [_cell(found.oracle)] if oracle else []
        body.append(cells)
    columns = [*baselines, *(["Mean image"] if oracle else [])]
    blocks: list[Block] = [*map(_result, objects), Table(head, body)]
    blocks += [_columns(layers, columns), _method_note(evaluation, oracle), _every_layer(objects)]
    return PageSection("Selectivity", "selectivity", blocks)


_COLUMNS: dict[str, Callable[[ObjectSelectivity], Sequence[LayerSelectivity]]] = {
    "Random": lambda found: found.random,
    "k-means": lambda found: found.dictionary,
    "Control": lambda found: found.control,
}
_NETWORK_NAMES = {
    THIS_NETWORK: "this network",
    "random filters": "a network of random filters",
    "k-means": "a k-means dictionary in the last stack",
    "control": "the control, a network trained on other images",
}


def _result(found: ObjectSelectivity) -> Paragraph:
    """Return a sentence about the best neurons for an object."""
    compared, winner = found.best_layers, found.best_model
    best = compared[winner]
    said = f"Best for {found.name}: a neuron of {_NETWORK_NAMES[winner]}, {percent(best.held_out)} held out"
    if winner != THIS_NETWORK:
        said += f"; the best of this network has {percent(compared[THIS_NETWORK].held_out)}"
    return Paragraph(f"{said}. Guessing gives {percent(found.guess)}.")


def _method_note(evaluation: Evaluation, oracle: bool) -> Paragraph:
    """Return a note on how the figures of the table were computed."""
    objects = evaluation.objects
    tests = "; ".join(
        f"{found.name}: {count(found.positives)} with, {count(found.negatives)} without, weighted "
        f"{found.weights.positives:.3f} to {found.weights.negatives:.3f}"
        for found in objects
    )
    said = (
        "Upper figure: accuracy of the best neuron at the best of 20 thresholds, on all images. Lower "
        "figure: neuron and threshold chosen on one half of the images, measured on the other half, mean ± "
        f"standard deviation over {objects[0].best.measurements} choices. Highlighted: the best held-out "
        f"accuracy. Images: {tests}. Network: step {count(evaluation.step)}."
    )
    made = next((found.clustering for found in objects if found.clustering is not None), None)
    if made is not None:
        settled = "converged" if made.converged else "did not converge, and was stopped"
        passes = f"{made.passes} passes over {count(made.images)} images"
        said += f" The k-means dictionary {settled} after {passes}."
    if oracle:
        said += " The mean image uses the labels, so it is excluded from the comparison."
    return Paragraph(said, "note")


def _stack_headings(names: Sequence[str]) -> list[str]:
    """Return headings such as Stack 1, Stack 2; with the part if several parts of one stack were tested."""
    layers = [Layer.parse(name) for name in names]
    several = len({layer.stack for layer in layers}) < len(layers)
    return [f"Stack {layer.stack + 1}" + (f"\n{_PARTS[layer.part]}" if several else "") for layer in layers]


def _columns(names: Sequence[str], baselines: Sequence[str]) -> Paragraph:
    """Return the meaning of the headings."""
    parts = dict.fromkeys(_PARTS[Layer.parse(name).part] for name in names)
    said = [f"Stack: the best neuron of this network ({' or '.join(parts)} layer)"]
    said += [f"{name}: {_BASELINES[name]}" for name in baselines]
    return Paragraph("; ".join(said) + ".", "note")


_PARTS = {"filters": "filter", "pooled": "pooled", "output": "normalised"}
_BASELINES = {
    "Random": "the best in a network of random filters",
    "k-means": "the best entry of a k-means dictionary",
    "Control": "the best in a network trained on other images",
    "Mean image": "the mean of the positives as a linear filter",
}


def layer_title(name: str) -> str:
    """Return a readable name of a layer: `2.pooled` is stack 2, because the default is pooled."""
    layer = Layer.parse(name)
    words = {"filters": " (filters)", "pooled": "", "output": " (normalised)"}
    return f"stack {layer.stack + 1}{words[layer.part]}"


def _best(layers: Sequence[LayerSelectivity]) -> LayerSelectivity | None:
    return max(layers, key=lambda layer: layer.held_out, default=None)


def _cell(layer: LayerSelectivity | None, best: LayerSelectivity | None = None) -> TableCell:
    """Return a cell with both figures of a layer, highlighted if it is the ``best``."""
    if layer is None:
        return TableCell("–")
    below = f"{percent(layer.held_out)} ± {100 * layer.spread:.1f}"
    return TableCell(percent(layer.best[0].accuracy), below, best=layer is best)


def _every_layer(objects: Sequence[ObjectSelectivity]) -> Details:
    body = []
    for found in objects:
        for kind, layers in (
            ("this net", found.network),
            ("random net", found.random),
            ("k-means", found.dictionary),
            ("control", found.control),
        ):
            for layer in layers:
                place = ", ".join(str(index) for index in layer.best[0].neuron)
                body.append(
                    row(
                        found.name,
                        kind,
                        layer_title(layer.layer),
                        count(layer.neurons),
                        count(layer.constant),
                        f"({place})",
                        percent(layer.best[0].accuracy),
                        f"{percent(layer.held_out)} ± {100 * layer.spread:.1f}",
                    )
                )
    head = [
        "Object",
        "Net",
        "Layer",
        "Neurons",
        "Constant",
        "Best at (map, y, x)",
        "All images",
        "Held out",
    ]
    return Details("Every layer", Table(head, body))


def neuron_profiles(evaluation: Evaluation | None) -> PageSection | None:
    """Return profiles of the most selective neurons: optimal stimulus, images with extreme responses."""
    found = [o for o in evaluation.objects if o.profiles] if evaluation else []
    if not found:
        return None
    note = Paragraph(
        "Left: the image of fixed norm with the largest response of a neuron, found by gradient ascent on "
        "the sphere (Le et al. 2012), starting from the mean of the unlabelled training images with its "
        "largest responses, or from noise if none were given. "
        "Right: test images at both ends of its responses; green frames mark positives.",
        "note",
    )
    blocks: list[Block] = []
    for number, one in enumerate(found):
        about = [note] if number == 0 else []
        blocks.append(Heading(one.name.capitalize()))
        if one.mean_positive:
            mean = Image(one.mean_positive, f"mean of the images of {one.name}")
            blocks.append(FigureWithText(Figure(mean, "Mean positive image"), about))
        else:
            blocks += about
        blocks += map(_profile_block, one.profiles)
    return PageSection("The most selective neurons", "neurons", blocks)


def _profile_block(portrait: NeuronProfile) -> FigureWithText:
    place = ", ".join(str(index) for index in portrait.neuron)
    name = f"{layer_title(portrait.layer).capitalize()}, neuron ({place})"
    said = (
        f"Accuracy on all images {percent(portrait.accuracy)}; correlation with the mean positive image "
        f"{portrait.correlation:.2f}"
    )
    if portrait.percentile is not None:
        share = percent(portrait.percentile / 100)
        said += f", higher than for {share} of {portrait.compared_neurons} random neurons of the layer"
    if portrait.percentile_random is not None:
        said += f" and {percent(portrait.percentile_random / 100)} of those with random filters"
    blocks: list[Block] = [Heading(name, level=4), Paragraph(said + ".", "note")]
    if portrait.highest:
        blocks += [Heading("Largest responses", level=4), _strip(portrait.highest)]
        blocks += [Heading("Smallest responses", level=4), _strip(portrait.lowest)]
    return FigureWithText(
        Figure(Image(portrait.image, f"optimal stimulus of {name}"), "Optimal stimulus"), blocks
    )


def _strip(exemplars: Iterable[TopImage]) -> FigureGrid:
    figures = [
        Figure(Image(one.image, one.name), f"{one.response:.2f}", "yes" if one.positive else "no")
        for one in exemplars
    ]
    return FigureGrid(figures, "strip")


def classification(found: Classification | None, run: str, word: str) -> PageSection:
    """Return the confusion matrix and examples of a supervised run; ``word`` is the name of its samples."""
    if found is None:
        text = f"No test {word} have been classified yet. To classify them, run"
        return PageSection("Classification", "classification", [Missing(text, f"cotswold evaluate {run}")])
    rows = []
    for label, answers in enumerate(found.confusion):
        total = max(1, sum(answers))
        cells = [TableCell(count(value) if value else "·", part=value / total) for value in answers]
        rows.append([*row(found.classes[label], percent(answers[label] / total)), *cells])
    lead = f"{percent(found.accuracy, 2)} of {count(found.samples)} {word} of {found.split} are correct."
    head = ["True class ↓, predicted →", "Correct", *found.classes]
    blocks: list[Block] = [Paragraph(lead), Table(head, rows, "confusion")]
    if found.correct_examples:
        blocks += [Heading("Correct"), _examples(found.correct_examples, right=True)]
    if found.wrong_examples:
        blocks += [Heading("Wrong"), _examples(found.wrong_examples, right=False)]
    return PageSection("Classification", "classification", blocks)


def regression(found: Regression | None, run: str) -> PageSection:
    """Return the regression errors of a supervised run."""
    if found is None:
        text = "The regression errors have not been measured yet. To measure them, run"
        return PageSection("Errors", "regression", [Missing(text, f"cotswold evaluate {run}")])
    lead = f"Squared loss {three_figures(found.loss)} over {count(found.samples)} samples of {found.split}."
    rows = [
        row(name, three_figures(error), three_figures(root), "·" if part is None else percent(part))
        for name, error, root, part in zip(
            found.names, found.squared_error, found.rmse, found.explained, strict=True
        )
    ]
    head = [
        "Target" if found.targets else "Target, from 0",
        "Mean squared error",
        "Root mean squared error",
        "Variance explained",
    ]
    return PageSection("Errors", "regression", [Paragraph(lead), Table(head, rows)])


def _examples(examples: Iterable[Example], *, right: bool) -> FigureGrid:
    figures = []
    for one in examples:
        caption = one.truth if right else f"{one.truth}, predicted as {one.predicted}"
        figures.append(Figure(Image(one.image, caption), caption, "yes" if right else "no"))
    return FigureGrid(figures, "strip")
