"""Names of the samples and of the network of a run in its report.

Knows: recipes, the start of a run. Does not know: sections.
"""

from __future__ import annotations

from cotswold.analysis.run_history import History, number
from cotswold.recipe import Recipe
from cotswold.recipe.schema import FrameData, PictureData, VectorData
from cotswold.ui.words import count

_NUMBERS = {1: "One", 2: "Two", 3: "Three", 4: "Four", 5: "Five", 6: "Six"}


def samples_word(recipe: Recipe) -> str:
    """Return the name of a run's samples: images or samples."""
    return "images" if isinstance(recipe.data, PictureData) else "samples"


def classifies(recipe: Recipe, history: History) -> bool:
    """True if a supervised run predicts classes: its log has accuracies; without a log, by its loss."""
    curves = [curve for phase in history.phases.values() for curve in (phase.training, phase.validation)]
    if any("loss" in each for each in curves):
        return any("accuracy" in each for each in curves)
    return recipe.loss != "squared"


def lead(recipe: Recipe, history: History) -> str:
    """Return one sentence about the run: what was trained, on what."""
    seen = _samples(recipe, history)
    if recipe.network.module is not None:
        name = recipe.network.module.rpartition(".")[2]
        what = f"A module of a Python program ({name}), trained on {seen}"
    elif not recipe.trains_stacks:
        layers = len(recipe.network.layers)
        layered = f"A network of {layers} layer{'s' if layers > 1 else ''} and an output layer"
        wanted = "with labels" if classifies(recipe, history) else "for regression"
        what = f"{layered if layers else 'One output layer'}, trained {wanted} on {seen}"
    else:
        stacks = len(recipe.network.stacks)
        name = f"{_NUMBERS.get(stacks, str(stacks))} stack{'s' if stacks > 1 else ''} of untied, "
        how = "one after another" if recipe.training.strategy == "greedy" else "all at once"
        what = f"{name}locally connected filters, trained without labels on {seen}"
        what += f", {how}" if stacks > 1 else ""
    status = str(history.end.get("status", "")) if history.end else "in progress"
    ends = {"finished": ".", "in progress": "; training is not finished.", "": "."}
    what += ends.get(status, f"; training was {status}.")
    warning = str(history.end.get("warning") or "")
    return f"{what} Warning: {warning}." if warning else what


def _samples(recipe: Recipe, history: History) -> str:
    """Return the number and kind of the samples."""
    data, word = recipe.data, samples_word(recipe)
    known = number(history.start, "pictures")
    seen = f"{count(known)} {word}" if known else word
    if isinstance(data, PictureData):
        shape = recipe.input
        colours = "in colour" if shape.channels == 3 else "in grey"
        return f"{seen} of {shape.height} × {shape.width} pixels {colours}"
    if not isinstance(data, VectorData | FrameData):
        return seen
    if data.features is not None:
        seen += f" of {count(data.features)} feature{'s' if data.features > 1 else ''}"
    if isinstance(data, FrameData) and data.context:
        frames = f"{data.context} frame{'s' if data.context > 1 else ''}"
        seen += f" (frames, each with {frames} on each side)"
    return seen
