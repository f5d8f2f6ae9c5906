"""Write the report of a run.

Knows: the order of sections, the run's files, that any of them may be damaged. Does not know: the content of
sections. A report can be written during training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined

import cotswold
from cotswold.analysis.classification import Classification
from cotswold.analysis.images import png_file_uri
from cotswold.analysis.regression import Regression
from cotswold.analysis.report import evaluation as findings
from cotswold.analysis.report import training
from cotswold.analysis.report.async_sgd import replicas
from cotswold.analysis.report.blocks import (
    Block,
    Details,
    Figure,
    Image,
    Items,
    Page,
    PageSection,
    Paragraph,
    Table,
    row,
)
from cotswold.analysis.report.few_labels import few_labels, headline
from cotswold.analysis.report.filters import filters
from cotswold.analysis.report.full_batch import full_batch_section
from cotswold.analysis.run_history import History, number
from cotswold.analysis.selectivity.results import THIS_NETWORK, Evaluation, ObjectSelectivity
from cotswold.checkpoint import CheckpointManager
from cotswold.data import Transform
from cotswold.data.datasets.japanese_ocr import sheets_of
from cotswold.errors import CotswoldError, MachineError
from cotswold.files.durable import disk_errors, replace_file
from cotswold.nn import StackNetwork
from cotswold.recipe import Recipe, expand, load
from cotswold.recipe.schema import FrameData, ImageData, TableData, VectorData
from cotswold.run import RunDirectory, read_events
from cotswold.ui.format import count, duration, percent, scaled, three_figures

T = TypeVar("T")
_RECIPE = (
    "The resolved recipe at the start of the run; a resume may have changed epochs or the data's location"
)


@dataclass(frozen=True)
class SkippedSamples:
    """Samples of a run's source that its store skipped.

    Args:
        count: their number.
        examples: names of the first ones, each with the reason.
        notes: further sentences about the store.
    """

    count: int
    examples: Sequence[str]
    notes: Sequence[str] = ()


def build_report(
    run: RunDirectory,
    network: StackNetwork | None = None,
    transform: Transform | None = None,
    *,
    evaluation: Evaluation | None = None,
    classification: Classification | None = None,
    left_out: SkippedSamples | None = None,
    problems: list[str] | None = None,
    name: str | None = None,
) -> Path:
    """Write ``report.html`` of a run.

    The page names missing results, with the command that computes them, and damaged files.

    Args:
        run: the run.
        network: the network of the newest checkpoint, for filters; None for a supervised run.
        transform: the preprocessing of the run's images.
        evaluation: the selectivity (default: read from the run).
        classification: the classification (default: read from the run).
        left_out: samples that the store skipped.
        problems: sentences about damage that the caller found; the function appends its own.
        name: name of the run in commands (default: its path).

    Returns:
        Path of the page.

    Raises:
        RecipeError: if the recipe is damaged.
        MachineError: if the page cannot be written.
    """
    recipe = load(run.recipe)
    page = _Sections(run, recipe, name or str(run.path), problems if problems is not None else [])
    history = page.history()
    supervised, word = not recipe.trains_stacks, samples_word(recipe)
    images, module = isinstance(recipe.data, ImageData), recipe.network.module is not None
    found = evaluation or page.read("the evaluation", lambda: Evaluation.read(run.evaluation))
    classified = classification or page.read(
        "the classification", lambda: Classification.read(run.classification)
    )
    page.add("Learning", lambda: training.curves(history, word))
    page.add("Full-batch optimisation", lambda: full_batch_section(recipe, history))
    page.add("Replicas", lambda: replicas(recipe, history))
    errors = page.read("the regression", lambda: Regression.read(run.regression))
    if errors is not None or (supervised and not module and not predicts_classes(recipe, history)):
        page.add("Errors", lambda: findings.regression(errors, page.name))
    elif supervised and not module:  # only the program can interpret the outputs of its module
        page.add("Classification", lambda: findings.classification(classified, page.name, word))
    elif images:
        if network is not None:
            network.eval()
        page.add("Selectivity", lambda: findings.selectivity(found, page.name))
        page.add("Few labels", lambda: few_labels(found))
        page.add("The most selective neurons", lambda: findings.neuron_profiles(found))
        page.add("Filters", lambda: filters(network, transform, page.name))
    data = recipe.data
    if isinstance(data, ImageData):
        white = data.whiten if transform is None else transform.whitening is not None
        page.add(
            "Whiteness", lambda: training.whiteness(history) if white else training.not_whitened(history)
        )
    page.add("Images of the data set", lambda: printed_set_section(recipe))
    page.add("Speed", lambda: training.speed(history, word))
    page.add("Account", lambda: training.totals_section(history, page.name, _steps(run.checkpoints)))
    page.add(word.capitalize(), lambda: _skipped_samples_section(left_out, word))
    page.add("Configuration", lambda: _configuration(run))
    page.add("Environment", lambda: _environment(run))
    text = page_html(
        Page(
            title=f"{recipe.name}: training report",
            summary=run_summary(recipe, history),
            numbers=_numbers(history, found, classified, errors, word),
            problems=page.problems,
            sections=page.sections,
            footer=f"Cotswold {cotswold.__version__}. All figures come from the files of {run.path.name}.",
        )
    )
    with disk_errors(run.report, MachineError):
        replace_file(run.report, text.encode("utf-8", "replace"))
    return run.report


_DAMAGE = (CotswoldError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, OSError)
"""Exceptions that damaged files cause in a section."""


@dataclass
class _Sections:
    """Sections of a page, and the problems of sections that could not be made."""

    run: RunDirectory
    recipe: Recipe
    name: str
    problems: list[str]
    sections: list[PageSection] = field(default_factory=list)

    def add(self, title: str, make: Callable[[], PageSection | None]) -> None:
        """Add a section, or record its problem."""
        section = self.read(f"the section {title}", make)
        if section is not None:
            self.sections.append(section)

    def read(self, what: str, make: Callable[[], T]) -> T | None:
        """Return the result of ``make``; None, with a recorded problem, if the data are damaged."""
        try:
            return make()
        except _DAMAGE as error:
            why = str(error) if isinstance(error, CotswoldError) else f"{type(error).__name__}: {error}"
            self.problems.append(f"the page is without {what}: {why}")
            return None

    def history(self) -> History:
        """Return the history from the events before the first damaged one."""
        history = History()
        if self.run.events.exists():
            self.read("the rest of the events", lambda: history.take_all(read_events(self.run.events)))
        return history


def _numbers(
    history: History,
    evaluation: Evaluation | None,
    classified: Classification | None,
    errors: Regression | None,
    word: str,
) -> list[tuple[str, str]]:
    boxes = []
    parameters = number(history.start, "parameters")
    if parameters is not None:
        boxes.append((scaled(parameters, "").strip(), "weights"))
    samples = number(history.end, "samples")
    if samples is not None:
        boxes.append((count(samples), f"{word} seen"))
    seconds = number(history.end, "training_seconds") or history.seconds  # as in the account
    if seconds:
        boxes.append((duration(seconds), "of training"))
    rate = number(history.end, "flops_per_second")
    if rate is not None:
        boxes.append((scaled(rate, "FLOP/s"), "sustained"))
    for found in evaluation.objects[:3] if evaluation else ():
        boxes += _best_neurons(found)
        boxes += headline(found.name, found.few_labels) if found.few_labels is not None else []
    if classified is not None:
        boxes.append((percent(classified.accuracy), f"correct, {classified.split} {word}"))
    if errors is not None:
        boxes.append((three_figures(errors.loss), f"squared loss, {errors.split} {word}"))
    return boxes


def _best_neurons(found: ObjectSelectivity) -> list[tuple[str, str]]:
    """Return the held-out accuracy of an object's best neuron, and of the network's best neuron."""
    compared, winner = found.best_layers, found.best_model
    shown = dict.fromkeys((winner, THIS_NETWORK))
    return [
        (
            percent(compared[who].held_out),
            f"{'best' if who == winner else 'the best'} neuron for {found.name}, held out: {who}",
        )
        for who in shown
    ]


def _skipped_samples_section(found: SkippedSamples | None, word: str) -> PageSection | None:
    """Return a section about the training samples: notes, and how many were skipped, and why."""
    if found is None or not (found.count or found.notes):
        return None
    blocks: list[Block] = [Paragraph(note[:1].upper() + note[1:]) for note in found.notes]
    if found.count:
        named = found.examples[:_MAX_NAMED_SAMPLES]
        blocks.append(Paragraph(f"{word.capitalize()} of the source that were skipped: {count(found.count)}"))
        blocks.append(Items(named))
        more = found.count - len(named)
        blocks += [Paragraph(f"and {count(more)} more.", "note")] if more else []
    return PageSection(word.capitalize(), "samples-read", blocks)


_MAX_NAMED_SAMPLES = 20


def _steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder, in order."""
    return [int(path.name.partition("-")[0]) for path in CheckpointManager(folder).paths()]


def _configuration(run: RunDirectory) -> PageSection:
    text = run.recipe.read_text("utf-8").strip()
    return PageSection("Configuration", "configuration", [Details(_RECIPE, text)])


def _environment(run: RunDirectory) -> PageSection | None:
    rows = []
    for key, value in run.environment().items():
        if key in ("processor_flags",) or value in (None, [], {}):
            continue
        if isinstance(value, dict):
            shown = ", ".join(f"{name} {version}" for name, version in value.items() if version)
        elif key.endswith("_bytes") and isinstance(value, int):
            key, shown = key.removesuffix("_bytes"), f"{value / 2**30:.1f} GiB"
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        rows.append(row(key.replace("_", " ").capitalize(), shown))
    return PageSection("Environment", "environment", [Table(["", ""], rows, "words")]) if rows else None


_CAPTIONS = {
    "originals-samples": "Scans from which training samples are generated, 20 x 20 grey",
    "transformed": "Training samples: each scan of the first row, then thickened, thinned, shifted, "
    "blurred and with noise, one column per scan",
    "degradations-samples": "Held out: scans with degradations that training does not contain",
    "families-samples": "Held out: whole families of typefaces",
    "faces": "The typefaces, one per row",
}


def printed_set_section(recipe: Recipe) -> PageSection | None:
    """Return None for other data, and for a data set that no longer exists."""
    data = recipe.data
    if not isinstance(data, VectorData) or data.source is None:
        return None
    found = sheets_of(expand(data.source))
    figures = [
        Figure(Image(png_file_uri(found[name]), caption), caption)
        for name, caption in _CAPTIONS.items()
        if name in found
    ]
    return PageSection("Images of the data set", "set", figures) if figures else None


def page_html(page: Page) -> str:
    """Return the whole page."""
    return _templates().get_template("page.html.j2").render(page=page)


def section_html(section: PageSection) -> str:
    """Return a section alone."""
    return _templates().get_template("section.html.j2").render(section=section)


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("cotswold.analysis.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


_NUMBERS = {1: "One", 2: "Two", 3: "Three", 4: "Four", 5: "Five", 6: "Six"}


def samples_word(recipe: Recipe) -> str:
    """Return the name of a run's samples: images or samples."""
    return "images" if isinstance(recipe.data, ImageData) else "samples"


def predicts_classes(recipe: Recipe, history: History) -> bool:
    """True if a supervised run predicts classes: its log has accuracies; without a log, by its loss."""
    curves = [curve for phase in history.phases.values() for curve in (phase.training, phase.validation)]
    if any("loss" in each for each in curves):
        return any("accuracy" in each for each in curves)
    return recipe.loss != "squared_error"


def run_summary(recipe: Recipe, history: History) -> str:
    """Return one sentence about the run: what was trained, on what."""
    seen = _samples(recipe, history)
    if recipe.network.module is not None:
        name = recipe.network.module.rpartition(".")[2]
        what = f"A module of a Python program ({name}), trained on {seen}"
    elif not recipe.trains_stacks:
        layers = len(recipe.network.layers)
        layered = f"A network of {layers} layer{'s' if layers > 1 else ''} and an output layer"
        wanted = "with labels" if predicts_classes(recipe, history) else "for regression"
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
    known = number(history.start, "samples")
    seen = f"{count(known)} {word}" if known else word
    if isinstance(data, ImageData):
        shape = recipe.input
        colours = "in colour" if shape.channels == 3 else "in grey"
        return f"{seen} of {shape.height} × {shape.width} pixels {colours}"
    if isinstance(data, TableData) and data.width is not None:
        return f"{seen} (rows of a table, {count(data.width)} feature{'s' if data.width > 1 else ''} each)"
    if not isinstance(data, VectorData | FrameData):
        return seen
    if data.features is not None:
        seen += f" of {count(data.features)} feature{'s' if data.features > 1 else ''}"
    if isinstance(data, FrameData) and data.context:
        frames = f"{data.context} frame{'s' if data.context > 1 else ''}"
        seen += f" (frames, each with {frames} on each side)"
    return seen
