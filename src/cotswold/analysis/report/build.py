"""Writes the page.

Knows: the order of sections, the run's files, that any of them may be damaged. Does not know: what is in a
section. A page can be written while training goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import cotswold
from cotswold.analysis.classification import Classification
from cotswold.analysis.regression import Regression
from cotswold.analysis.report import evaluation as findings
from cotswold.analysis.report import training
from cotswold.analysis.report.async_sgd import replicas
from cotswold.analysis.report.blocks import Block, Details, Items, Page, PageSection, Paragraph, Table, row
from cotswold.analysis.report.filters import filters
from cotswold.analysis.report.full_batch import whole_set
from cotswold.analysis.report.printed_set import printed_set
from cotswold.analysis.report.render import page_html
from cotswold.analysis.report.wording import classifies, lead, samples_word
from cotswold.analysis.run_history import History, number
from cotswold.analysis.selectivity.results import THIS_NETWORK, Evaluation, ObjectSelectivity
from cotswold.checkpoint import Checkpoints
from cotswold.data import Transform
from cotswold.errors import CotswoldError, MachineError
from cotswold.files.durable import disk_errors, replace_file
from cotswold.nn import StackNetwork
from cotswold.recipe import Recipe, load
from cotswold.recipe.schema import PictureData
from cotswold.run import RunDirectory, read_events
from cotswold.ui.words import count, duration, percent, plain, scaled

T = TypeVar("T")
_RECIPE = "The resolved recipe with which the run began; a resume may have given more epochs or another place"


@dataclass(frozen=True)
class LeftOut:
    """Samples of a run's source that its store left out: how many, and the first with the reason.

    ``notes`` are what else is to be known of the store, a sentence each.
    """

    count: int
    named: Sequence[str]
    notes: Sequence[str] = ()


def build_report(
    run: RunDirectory,
    network: StackNetwork | None = None,
    transform: Transform | None = None,
    *,
    evaluation: Evaluation | None = None,
    classification: Classification | None = None,
    left_out: LeftOut | None = None,
    problems: list[str] | None = None,
    name: str | None = None,
) -> Path:
    """Write ``report.html`` of a run and return its path.

    ``network`` is that of the newest checkpoint, ``transform`` how the run's pictures were prepared; what is
    missing is said on the page, with the command that makes it. ``evaluation`` and ``classification`` are
    read from the run where they are not given. What is damaged is left out and named on the page; a sentence
    about it is added to ``problems``, which begins with what the caller met. ``name`` is how the page calls
    the run in commands, its path by default. Raises RecipeError without a sound recipe, MachineError where
    the page cannot be written.
    """
    recipe = load(run.recipe)
    page = _Sections(run, recipe, name or str(run.path), problems if problems is not None else [])
    history = page.history()
    supervised, word = not recipe.trains_stacks, samples_word(recipe)
    pictures, module = isinstance(recipe.data, PictureData), recipe.network.module is not None
    found = evaluation or page.read("the evaluation", lambda: Evaluation.read(run.evaluation))
    classified = classification or page.read(
        "the classification", lambda: Classification.read(run.classification)
    )
    page.add("Learning", lambda: training.curves(history, word))
    page.add("Whole-set optimisation", lambda: whole_set(recipe, history))
    page.add("Replicas", lambda: replicas(recipe, history))
    errors = page.read("the regression", lambda: Regression.read(run.regression))
    if errors is not None or (supervised and not module and not classifies(recipe, history)):
        page.add("Errors", lambda: findings.regression(errors, page.name))
    elif supervised and not module:  # what a module of a program answers, the program alone can ask
        page.add("Classification", lambda: findings.classification(classified, page.name, word))
    elif pictures:
        if network is not None:
            network.eval()
        page.add("Selectivity", lambda: findings.selectivity(found, page.name))
        page.add("The most selective neurons", lambda: findings.portraits(found))
        page.add("Filters", lambda: filters(network, transform, page.name))
    data = recipe.data
    if isinstance(data, PictureData):
        white = data.whiten if transform is None else transform.whitening is not None
        page.add(
            "Whiteness", lambda: training.whiteness(history) if white else training.not_whitened(history)
        )
    page.add("Pictures of the set", lambda: printed_set(recipe))
    page.add("Speed", lambda: training.speed(history, word))
    page.add("Account", lambda: training.accounts(history, page.name, _steps(run.checkpoints)))
    page.add(word.capitalize(), lambda: _left_out(left_out, word))
    page.add("Configuration", lambda: _configuration(run))
    page.add("Environment", lambda: _environment(run))
    text = page_html(
        Page(
            title=f"{recipe.name}: what was learnt",
            lead=lead(recipe, history),
            numbers=_numbers(history, found, classified, errors, word),
            problems=page.problems,
            sections=page.sections,
            footer=f"Cotswold {cotswold.__version__}. Every figure comes from the files of {run.path.name}.",
        )
    )
    with disk_errors(run.report, MachineError):
        replace_file(run.report, text.encode("utf-8", "replace"))
    return run.report


_DAMAGE = (CotswoldError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, OSError)
"""What damaged files do to a section."""


@dataclass
class _Sections:
    """The sections of a page as far as they can be made, and what is wrong with the others."""

    run: RunDirectory
    recipe: Recipe
    name: str
    problems: list[str]
    sections: list[PageSection] = field(default_factory=list)

    def add(self, title: str, make: Callable[[], PageSection | None]) -> None:
        """Add a section, or name what is wrong with it."""
        section = self.read(f"the section {title}", make)
        if section is not None:
            self.sections.append(section)

    def read(self, what: str, make: Callable[[], T]) -> T | None:
        """What ``make`` gives; None where it is damaged, which is named."""
        try:
            return make()
        except _DAMAGE as error:
            why = str(error) if isinstance(error, CotswoldError) else f"{type(error).__name__}: {error}"
            self.problems.append(f"the page is without {what}: {why}")
            return None

    def history(self) -> History:
        """What the events tell, up to the first that is damaged."""
        history = History()
        if self.run.events.exists():
            self.read("some events", lambda: history.take_all(read_events(self.run.events)))
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
    seconds = number(history.end, "training_seconds") or history.seconds  # as the account has it
    if seconds:
        boxes.append((duration(seconds), "of training"))
    rate = number(history.end, "flops_per_second")
    if rate is not None:
        boxes.append((scaled(rate, "FLOP/s"), "sustained"))
    for found in evaluation.objects[:3] if evaluation else ():
        boxes += _best_neurons(found)
    if classified is not None:
        boxes.append((percent(classified.accuracy), f"right, {classified.split} {word}"))
    if errors is not None:
        boxes.append((plain(errors.loss), f"squared loss, {errors.split} {word}"))
    return boxes


def _best_neurons(found: ObjectSelectivity) -> list[tuple[str, str]]:
    """Whose neuron does best on an object; the network's own beside it where that is another's."""
    compared, winner = found.compared, found.winner
    shown = dict.fromkeys((winner, THIS_NETWORK))
    return [
        (
            percent(compared[who].held_out),
            f"{'best' if who == winner else 'the best'} neuron for {found.name}, held out: {who}",
        )
        for who in shown
    ]


def _left_out(found: LeftOut | None, word: str) -> PageSection | None:
    """What is to be known of the training samples; how many were left out, and why."""
    if found is None or not (found.count or found.notes):
        return None
    blocks: list[Block] = [Paragraph(note[:1].upper() + note[1:]) for note in found.notes]
    if found.count:
        named = found.named[:_NAMED]
        blocks.append(
            Paragraph(f"{word.capitalize()} of the source that are not in training: {count(found.count)}")
        )
        blocks.append(Items(named))
        more = found.count - len(named)
        blocks += [Paragraph(f"and {count(more)} more.", "note")] if more else []
    return PageSection(word.capitalize(), "samples-read", blocks)


_NAMED = 20


def _steps(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, in order."""
    return [int(path.name.partition("-")[0]) for path in Checkpoints(folder).paths()]


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
