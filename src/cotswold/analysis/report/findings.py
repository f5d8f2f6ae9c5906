"""Sections on what was learnt: the selectivity table, portraits of neurons, the errors of a classifier.

Knows: evaluations. Does not know: networks, events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from cotswold.analysis.classification import Classification
from cotswold.analysis.evaluation import THIS_NETWORK, Evaluation, Exemplar, ObjectSelectivity, Portrait
from cotswold.analysis.layers import Layer
from cotswold.analysis.report.words import (
    Best,
    count,
    figure,
    grid,
    image,
    missing,
    paragraph,
    percent,
    section,
    table,
)
from cotswold.analysis.selectivity import LayerSelectivity


def selectivity(evaluation: Evaluation | None, run: str) -> str:
    """The table in the shape of the paper's Table 2, and a longer one for every layer."""
    if evaluation is None or not evaluation.objects:
        text = "No neuron has been tested yet. To test them on pictures with and without an object, run"
        command = f"cotswold evaluate {run} --positives A --negatives B"
        return section("Selectivity", missing(text, command), "selectivity")
    objects = evaluation.objects
    layers = list(dict.fromkeys(layer.layer for found in objects for layer in found.network))
    rivals = {name: of for name, of in _COLUMNS.items() if any(of(found) for found in objects)}
    oracle = any(found.oracle for found in objects)
    head = ["Object", "Guess", *_stack_headings(layers), *rivals, *(["Mean picture"] if oracle else [])]
    body = []
    for found in objects:
        best = found.contestants[found.winner]
        by_name = {layer.layer: layer for layer in found.network}
        cells = [escape(found.name), percent(found.guess)]
        cells += [_cell(by_name.get(name), best) for name in layers]
        cells += [_cell(_best(of(found)), best) for of in rivals.values()]
        cells += [_cell(found.oracle)] if oracle else []
        body.append(cells)
    said = "".join(_result(found) for found in objects)
    columns = [*rivals, *(["Mean picture"] if oracle else [])]
    how = _columns(layers, columns) + _how(evaluation, oracle)
    return section("Selectivity", said + table(head, body) + how + _every_layer(objects), "selectivity")


_COLUMNS: dict[str, Callable[[ObjectSelectivity], Sequence[LayerSelectivity]]] = {
    "Random": lambda found: found.random,
    "k-means": lambda found: found.dictionary,
    "Control": lambda found: found.control,
}
_WHOSE = {
    THIS_NETWORK: "this network",
    "random filters": "a network of random filters",
    "k-means": "a k-means dictionary in the last stack",
    "control": "the control, a network trained on other pictures",
}


def _result(found: ObjectSelectivity) -> str:
    """Who tells an object best, in one sentence."""
    contestants, winner = found.contestants, found.winner
    best = contestants[winner]
    said = f"Best for {found.name}: a neuron of {_WHOSE[winner]}, {percent(best.held_out)} held out"
    if winner != THIS_NETWORK:
        said += f"; the best of this network has {percent(contestants[THIS_NETWORK].held_out)}"
    return paragraph(f"{said}. Guessing gives {percent(found.guess)}.")


def _how(evaluation: Evaluation, oracle: bool) -> str:
    """How the figures of the table came about."""
    objects = evaluation.objects
    tests = "; ".join(
        f"{found.name}: {count(found.positives)} with, {count(found.negatives)} without, weighing "
        f"{found.weights.positives:.3f} to {found.weights.negatives:.3f}"
        for found in objects
    )
    said = (
        "Upper figure: accuracy of the best neuron at the best of 20 thresholds, on all pictures. Lower "
        "figure: neuron and threshold chosen on one half of the pictures, measured on the other, mean ± "
        f"standard deviation over {objects[0].best.measurements} choices. Marked: the best held out. "
        f"Pictures: {tests}. Network: that of step {count(evaluation.step)}."
    )
    made = next((found.clustering for found in objects if found.clustering is not None), None)
    if made is not None:
        settled = "settled" if made.converged else "had not settled, and was ended,"
        passes = f"{made.passes} passes over {count(made.pictures)} pictures"
        said += f" The k-means dictionary {settled} after {passes}."
    if oracle:
        said += " The mean picture has seen the labels, and does not compete."
    return paragraph(said, "note")


def _stack_headings(names: Sequence[str]) -> list[str]:
    """Stack 1, Stack 2; the part of a stack is named where several of one stack were tested."""
    layers = [Layer.named(name) for name in names]
    several = len({layer.stack for layer in layers}) < len(layers)
    return [f"Stack {layer.stack + 1}" + (f"<br>{_PARTS[layer.part]}" if several else "") for layer in layers]


def _columns(names: Sequence[str], rivals: Sequence[str]) -> str:
    """What the headings stand for."""
    parts = dict.fromkeys(_PARTS[Layer.named(name).part] for name in names)
    said = [f"Stack: the best neuron of this network ({' or '.join(parts)} layer)"]
    said += [f"{name}: {_RIVALS[name]}" for name in rivals]
    return paragraph("; ".join(said) + ".", "note")


_PARTS = {"filters": "filter", "pooled": "pooled", "output": "normalised"}
_RIVALS = {
    "Random": "the best in a network of random filters",
    "k-means": "the best word of a k-means dictionary",
    "Control": "the best in a network trained on other pictures",
    "Mean picture": "the mean of the positives as a linear filter",
}


def layer_title(name: str) -> str:
    """A layer as people call it: `2.pooled` is stack 2 where pooling units are the ones tested."""
    layer = Layer.named(name)
    words = {"filters": " (filters)", "pooled": "", "output": " (normalised)"}
    return f"stack {layer.stack + 1}{words[layer.part]}"


def _best(layers: Sequence[LayerSelectivity]) -> LayerSelectivity | None:
    return max(layers, key=lambda layer: layer.held_out, default=None)


def _cell(layer: LayerSelectivity | None, best: LayerSelectivity | None = None) -> str:
    """Both figures of a layer, which stands out where it is the ``best``."""
    if layer is None:
        return "–"
    spread = f'<br><span class="small">{percent(layer.held_out)} ± {100 * layer.spread:.1f}</span>'
    text = f"{percent(layer.best[0].accuracy)}{spread}"
    return Best(text) if layer is best else text


def _every_layer(objects: Sequence[ObjectSelectivity]) -> str:
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
                    [
                        escape(found.name),
                        kind,
                        escape(layer_title(layer.layer)),
                        count(layer.neurons),
                        count(layer.constant),
                        f"({place})",
                        percent(layer.best[0].accuracy),
                        f"{percent(layer.held_out)} ± {100 * layer.spread:.1f}",
                    ]
                )
    head = [
        "Object",
        "Net",
        "Layer",
        "Neurons",
        "Constant",
        "Best at (map, y, x)",
        "All pictures",
        "Held out",
    ]
    return f"<details><summary>Every layer</summary>{table(head, body)}</details>"


def portraits(evaluation: Evaluation | None) -> str:
    """The most selective neurons: optimal stimulus, pictures that excite them most and least."""
    found = [o for o in evaluation.objects if o.portraits] if evaluation else []
    if not found:
        return ""
    note = paragraph(
        "Left: the picture of fixed norm that a neuron answers most strongly, found by gradient ascent on "
        "the sphere (Le et al. 2012) from the mean of the unlabelled training pictures that excite it most, "
        "or from noise where none were given. "
        "Right: test pictures at both ends of its answers; green frames mark positives.",
        "note",
    )
    parts = []
    for number, one in enumerate(found):
        about = note if number == 0 else ""
        if one.mean_positive:
            alt = f"mean of the pictures of {one.name}"
            mean = figure(image(one.mean_positive, alt), "Mean positive picture")
            about = f'<div class="portrait">{mean}<div>{about}</div></div>'
        parts.append(
            f"<h3>{escape(one.name.capitalize())}</h3>{about}" + "".join(map(_portrait, one.portraits))
        )
    return section("The most selective neurons", "".join(parts), "neurons")


def _portrait(portrait: Portrait) -> str:
    place = ", ".join(str(index) for index in portrait.neuron)
    name = f"{layer_title(portrait.layer).capitalize()}, neuron ({place})"
    said = (
        f"Accuracy on all pictures {percent(portrait.accuracy)}; correlation with the mean positive picture "
        f"{portrait.correlation:.2f}"
    )
    if portrait.percentile is not None:
        share = percent(portrait.percentile / 100)
        said += f", above {share} of {portrait.compared} neurons of the layer drawn at random"
    if portrait.percentile_random is not None:
        said += f" and {percent(portrait.percentile_random / 100)} of those with random filters"
    strips = (
        f"<h4>Most exciting</h4>{_strip(portrait.most)}<h4>Least exciting</h4>{_strip(portrait.least)}"
        if portrait.most
        else ""
    )
    stimulus = figure(image(portrait.image, f"optimal stimulus of {name}"), "Optimal stimulus")
    words = f"<h4>{escape(name)}</h4>{paragraph(said + '.', 'note')}"
    return f'<div class="portrait">{stimulus}<div>{words}{strips}</div></div>'


def _strip(exemplars: Iterable[Exemplar]) -> str:
    return grid(
        (
            figure(image(one.image, one.name), f"{one.response:.2f}", "yes" if one.positive else "no")
            for one in exemplars
        ),
        "strip",
    )


def classification(found: Classification | None, run: str) -> str:
    """Confusion matrix and example pictures of a supervised run."""
    if found is None:
        text = "No test pictures have been classified yet. To classify them, run"
        return section("Classification", missing(text, f"cotswold evaluate {run}"), "classification")
    rows = []
    for label, row in enumerate(found.confusion):
        total = max(1, sum(row))
        cells = [
            f'<span style="--part:{value / total:.3f}">{count(value) if value else "·"}</span>'
            for value in row
        ]
        rows.append([escape(found.classes[label]), percent(row[label] / total), *cells])
    head = ["True class ↓, answer →", "Right", *(escape(name) for name in found.classes)]
    right = grid((_example(one.image, one.truth, one.answer, True) for one in found.right), "strip")
    wrong = grid((_example(one.image, one.truth, one.answer, False) for one in found.wrong), "strip")
    lead = paragraph(
        f"{percent(found.accuracy, 2)} of {count(found.pictures)} pictures of {found.split} are right."
    )
    examples = (f"<h3>Right</h3>{right}" if found.right else "") + (
        f"<h3>Wrong</h3>{wrong}" if found.wrong else ""
    )
    return section("Classification", lead + table(head, rows, "confusion") + examples, "classification")


def _example(uri: str, truth: str, answer: str, right: bool) -> str:
    caption = truth if right else f"{truth}, taken for {answer}"
    return figure(image(uri, caption), caption, "yes" if right else "no")
