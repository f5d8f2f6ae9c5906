"""Writes the page.

Knows: the order of sections, the run's files, how a file is replaced at one stroke. Does not know: what is in
a section. A page can be written while training goes on.
"""

from __future__ import annotations

import os
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import cotswold
from cotswold.analysis.classification import Classification
from cotswold.analysis.evaluation import Evaluation
from cotswold.analysis.report import findings, training
from cotswold.analysis.report.filters import filters
from cotswold.analysis.report.history import History, number
from cotswold.analysis.report.words import count, duration, paragraph, percent, scaled, section, table
from cotswold.errors import MachineError
from cotswold.files.durable import PARTIAL, disk_errors
from cotswold.nn import StackNetwork
from cotswold.recipe import Recipe, load
from cotswold.run import RunDirectory, read_events

if TYPE_CHECKING:
    from cotswold.data import Store


def build_report(
    run: RunDirectory,
    network: StackNetwork | None = None,
    store: Store | None = None,
    evaluation: Evaluation | None = None,
    *,
    classification: Classification | None = None,
    name: str | None = None,
) -> Path:
    """Write ``report.html`` of a run and return its path.

    ``network`` is that of the newest checkpoint, ``store`` the run's pictures; what is missing is said on the
    page, with the command that makes it. ``evaluation`` and ``classification`` are read from the run where
    they are not given. ``name`` is how the page calls the run in commands, its path by default.
    """
    recipe = load(run.recipe)
    history = History.of(read_events(run.events)) if run.events.is_file() else History()
    supervised = recipe.training.strategy == "supervised"
    called = name or str(run.path)
    found = evaluation or Evaluation.read(run.evaluation)
    classified = classification or Classification.read(run.classification)
    sections = [training.curves(history, supervised)]
    if supervised:
        sections.append(findings.classification(classified, called))
    else:
        if network is not None:
            network.eval()
        sections.append(findings.selectivity(found, called))
        sections.append(findings.portraits(found))
        sections.append(filters(network, store.transform if store is not None else None, called))
    whitened = recipe.data.whiten if store is None else store.transform.whitening is not None
    sections.append(training.whiteness(history) if whitened else training.not_whitened(history))
    sections += [training.speed(history), training.accounts(history, called)]
    sections += [_configuration(run), _environment(run)]
    page = Template((files("cotswold.analysis.report") / "page.html").read_text("utf-8")).substitute(
        title=escape(f"{recipe.name}: what was learnt"),
        lead=paragraph(_lead(recipe, history), "lead"),
        numbers=_numbers(history, found, classified),
        contents="".join(_links(sections)),
        sections="\n".join(part for part in sections if part),
        footer=escape(
            f"Cotswold {cotswold.__version__}. Every figure comes from the files of {run.path.name}."
        ),
    )
    _replace(run.report, page)
    return run.report


def _lead(recipe: Recipe, history: History) -> str:
    """What was trained, in one sentence."""
    shape = recipe.input
    pictures = number(history.start, "pictures")
    seen = f"{count(pictures)} pictures" if pictures else "pictures"
    seen += f" of {shape.height} × {shape.width} pixels" + (
        " in colour" if shape.channels == 3 else " in grey"
    )
    if recipe.training.strategy == "supervised":
        layers = len(recipe.network.layers)
        what = f"A network of {layers} layers and an output layer, trained with labels on {seen}"
    else:
        stacks = len(recipe.network.stacks)
        name = (
            "One stack" if stacks == 1 else f"{_NUMBERS.get(stacks, str(stacks))} stacks"
        ) + " of untied, "
        how = "one after the other" if recipe.training.strategy == "greedy" else "all at once"
        what = f"{name}locally connected filters, trained without labels on {seen}"
        what += f", {how}" if stacks > 1 else ""
    status = str(history.end.get("status", "")) if history.end else "in progress"
    ends = {"finished": ".", "in progress": "; training is not finished.", "": "."}
    return what + ends.get(status, f"; training was {status}.")


_NUMBERS = {2: "Two", 3: "Three", 4: "Four", 5: "Five", 6: "Six"}


def _numbers(history: History, evaluation: Evaluation | None, classified: Classification | None) -> str:
    boxes = []
    parameters = number(history.start, "parameters")
    if parameters is not None:
        boxes.append((scaled(parameters, "").strip(), "weights"))
    patterns = number(history.end, "patterns")
    if patterns is not None:
        boxes.append((count(patterns), "pictures seen"))
    if history.seconds:
        boxes.append((duration(history.seconds), "of training"))
    rate = number(history.end, "flops_per_second")
    if rate is not None:
        boxes.append((scaled(rate, "FLOP/s"), "sustained"))
    for found in evaluation.objects[:3] if evaluation else ():
        boxes.append((percent(found.best.held_out), f"best neuron for {found.name}, held out"))
    if classified is not None:
        boxes.append((percent(classified.accuracy), f"right, {classified.split} pictures"))
    inside = "".join(
        f"<div><b>{escape(value)}</b><span>{escape(label)}</span></div>" for value, label in boxes
    )
    return f'<div class="numbers">{inside}</div>' if boxes else ""


def _links(sections: list[str]) -> list[str]:
    found = []
    for part in sections:
        if part:
            anchor, title = (
                part.split('id="', 1)[1].split('"', 1)[0],
                part.split("<h2>", 1)[1].split("</h2>", 1)[0],
            )
            found.append(f'<a href="#{anchor}">{title}</a>')
    return found


def _configuration(run: RunDirectory) -> str:
    text = run.recipe.read_text("utf-8").strip()
    body = f"<details><summary>The resolved recipe</summary><pre>{escape(text)}</pre></details>"
    return section("Configuration", body, "configuration")


def _environment(run: RunDirectory) -> str:
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
        rows.append([escape(key.replace("_", " ").capitalize()), escape(shown)])
    return section("Environment", table(["", ""], rows, "words"), "environment") if rows else ""


def _replace(path: Path, text: str) -> None:
    """Write a file at one stroke: whoever reads it sees the old one or the new one."""
    beside = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
    with disk_errors(path, MachineError):
        try:
            beside.write_text(text, "utf-8")
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
