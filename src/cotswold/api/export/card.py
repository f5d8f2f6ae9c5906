"""The model card of a run: a README.md with the front matter that the Hugging Face hub reads.

Knows: recipe, events and results of a run. Does not know: networks, export files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotswold import __version__
from cotswold.api.arguments import check_path
from cotswold.api.export.public_recipe import precision_note, public_name, public_recipe
from cotswold.errors import CotswoldError, UserError
from cotswold.phrases import counted

if TYPE_CHECKING:
    from cotswold.api.run import Run
    from cotswold.recipe import Recipe
    from cotswold.training import SampleSpec

_CLASSES_SHOWN = 20
_NAMES = {"loss": "loss", "accuracy": "accuracy", "rmse": "root mean squared error", "r2": "R²"}


@dataclass(frozen=True)
class CardFigure:
    """A measured figure: the split, the metric's name on the hub, the value."""

    split: str
    metric: str
    value: float


def card(run: Run, path: str | Path | None, license: str | None) -> str:
    """Return the card of a run, and write it; see `Run.card`."""
    if license is not None and (not isinstance(license, str) or not license.strip()):
        raise UserError(f"license must be a name such as apache-2.0, got {license!r}")
    recipe = run.recipe
    spec, tested = _spec(run), _tested(run)
    known = {(each.split, each.metric) for each in tested}
    figures = [*tested, *(each for each in _validated(run) if (each.split, each.metric) not in known)]
    text = "\n".join(
        [
            "---",
            *_front_matter(recipe, spec, figures, license),
            "---",
            "",
            f"# {recipe.name}",
            "",
            _summary(run, recipe),
            "",
            "## Data",
            "",
            *_data(run, recipe, spec),
            "",
            "## Figures",
            "",
            *_figures(figures),
            "",
            "## Cost of the training",
            "",
            *_cost(run),
            "",
            "## How to load it",
            "",
            *_loading(recipe),
            "",
            "## Recipe",
            "",
            "```toml",
            public_recipe(recipe).strip(),
            "```",
            "",
        ]
    )
    if path is not None:
        check_path("the card", path)
        from cotswold.files import DiskRemedy, create_file, disk_errors

        target = Path(path)
        if target.exists() or target.is_symlink():
            raise UserError(f"{target} exists; give another name, or remove it")
        with disk_errors(target, UserError, DiskRemedy.REPEAT):
            target.parent.mkdir(parents=True, exist_ok=True)
            create_file(target, text.encode())
    return text


def _front_matter(
    recipe: Recipe, spec: SampleSpec | None, figures: list[CardFigure], license: str | None
) -> list[str]:
    """Return YAML; its texts are JSON strings, which YAML reads."""
    kind = _task(recipe, spec)
    task = json.dumps(kind.replace("-", " "))
    lines = [] if license is None else [f"license: {json.dumps(license)}"]
    lines += ["library_name: cotswold", f"pipeline_tag: {kind}", "tags:"]
    lines += [f"- {each}" for each in ("cotswold", "pytorch", recipe.training.strategy)]
    if not figures:
        return lines
    names = dict.fromkeys(each.metric for each in figures if each.metric != "loss")
    lines += ["metrics:", *(f"- {each}" for each in names)] if names else []
    lines += ["model-index:", f"- name: {json.dumps(recipe.name)}", "  results:"]
    for split in dict.fromkeys(each.split for each in figures):
        lines += [
            "  - task:",
            f"      type: {kind}",
            f"      name: {task}",
            "    dataset:",
            f"      type: {json.dumps(_data_name(recipe))}",
            f"      name: {json.dumps(_data_name(recipe))}",
            f"      split: {json.dumps(split)}",
            "    metrics:",
        ]
        for each in figures:
            if each.split == split:
                lines += [
                    f"    - type: {each.metric}",
                    f"      value: {json.dumps(each.value)}",
                    f"      name: {json.dumps(f'{_NAMES.get(each.metric, each.metric)} ({split})')}",
                ]
    return lines


def _task(recipe: Recipe, spec: SampleSpec | None) -> str:
    """Return the hub's name of what the network does."""
    if recipe.network.module is not None:
        return "other"
    if recipe.network.stacks:
        return "image-feature-extraction" if recipe.data.type == "images" else "feature-extraction"
    if spec is not None and spec.targets:
        return "tabular-regression"
    return "image-classification" if recipe.data.type == "images" else "tabular-classification"


def _data_name(recipe: Recipe) -> str:
    given = recipe.data.source or recipe.data.store
    return public_name(str(given)) if given else recipe.data.type


def _summary(run: Run, recipe: Recipe) -> str:
    parameters = next((each["parameters"] for each in run.events if each["kind"] == "start"), None)
    size = f" of {int(str(parameters)):,} weights" if parameters is not None else ""
    what = "stacks" if recipe.network.stacks else "network"
    if recipe.network.module is not None:
        what = recipe.network.module.rpartition(".")[2]
    note = "" if run.status == "finished" else f" The run is {run.status}."
    precise = precision_note(recipe)
    return (
        f"A {what}{size}, trained by Cotswold {__version__} with strategy `{recipe.training.strategy}`.{note}"
        f"{precise and f' {precise}'}"
    )


def _spec(run: Run) -> SampleSpec | None:
    """Return the preparation of the samples from the newest checkpoint; None without one."""
    from cotswold.training import SampleSpec
    from cotswold.training.jobs.restore import newest

    if run.recipe.network.module is not None:
        return None
    try:
        return SampleSpec.from_state(newest(run.directory, run.recipe).state)
    except CotswoldError:
        return None


def _tested(run: Run) -> list[CardFigure]:
    """Return the figures of `cotswold evaluate`; none before it, or if its file is damaged."""
    from cotswold.analysis import Classification, Regression

    try:
        found = Classification.read(run.directory.classification)
        errors = Regression.read(run.directory.regression)
    except CotswoldError:
        return []
    figures = [] if found is None else [CardFigure(found.split, "accuracy", found.accuracy)]
    if errors is not None:
        figures += [CardFigure(errors.split, "rmse", each) for each in errors.rmse]
        figures += [CardFigure(errors.split, "r2", each) for each in errors.explained if each is not None]
    return figures


def _validated(run: Run) -> list[CardFigure]:
    """Return the figures of the best validation; of stacks, of the last."""
    found = [event for event in run.events if event["kind"] == "validation" and _numbers(event)]
    if not found:
        return []
    stacks = bool(run.recipe.network.stacks)
    best = found[-1] if stacks else min(found, key=lambda event: _numbers(event).get("loss", inf))
    return [CardFigure("validation", name, value) for name, value in _numbers(best).items()]


_BOOKKEEPING = (
    *("kind", "time", "seconds", "phase", "step", "phase_step", "evaluations", "flops", "training_seconds"),
    *("samples", "epoch"),
)


def _numbers(event: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of a validation event."""
    return {
        name: float(value)
        for name, value in event.items()
        if name not in _BOOKKEEPING
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and isfinite(value)
    }


def _data(run: Run, recipe: Recipe, spec: SampleSpec | None) -> list[str]:
    samples = next((each.get("samples") for each in run.events if each["kind"] == "start"), None)
    lines = [f"- Source: `{_data_name(recipe)}`"]
    if isinstance(samples, int):
        lines.append(f"- Training samples: {samples:,}")
    if spec is None:
        return lines
    if spec.classes:
        shown = ", ".join(f"`{each}`" for each in spec.classes[:_CLASSES_SHOWN])
        more = f" and {len(spec.classes) - _CLASSES_SHOWN} more" if len(spec.classes) > _CLASSES_SHOWN else ""
        lines.append(f"- Classes ({len(spec.classes)}): {shown}{more}")
    if spec.targets:
        names = "".join(f", `{name}`" for name in spec.target_names)
        lines.append(f"- Regression targets: {spec.targets}{names}")
    return [*lines, f"- Input of the network: {recipe.input} (channel x height x width), prepared"]


def _figures(figures: list[CardFigure]) -> list[str]:
    if not figures:
        return ["The run has no validation. `cotswold evaluate` measures one on labelled samples."]
    rows = [
        f"| {each.split} | {_NAMES.get(each.metric, each.metric)} | {each.value:.6g} |" for each in figures
    ]
    return ["| split | figure | value |", "|---|---|---|", *rows]


def _cost(run: Run) -> list[str]:
    """Return the totals of the run's last end; resumptions are included."""
    end = next((each for each in reversed(run.events) if each["kind"] == "end"), None)
    if end is None:
        return ["The run has not ended, so its cost is not known yet."]
    lines = [f"- Time of training: {_duration(float(str(end['training_seconds'])))}"]
    flops = end.get("flops")
    if isinstance(flops, int | float) and flops:
        lines.append(f"- Floating-point operations of forward pass and gradient: {flops:.3g}")
    if isinstance(end.get("dollars"), float):
        lines.append(f"- Rent of the machine: {end['dollars']:.2f} US dollars")
    try:
        environment = json.loads((run.path / "environment.json").read_text(encoding="utf-8"))
        lines.append(f"- Processor: {environment['processor']}, {counted(environment['threads'], 'thread')}")
        lines += [f"- {name}" for name in environment["cuda"]]
    except (OSError, ValueError, LookupError, TypeError):
        pass  # the record of the machine may be lost; the figures above stand
    return lines


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} seconds"
    return f"{seconds / 60:.3g} minutes" if seconds < 7200 else f"{seconds / 3600:.3g} hours"


def _loading(recipe: Recipe) -> list[str]:
    example = "run.export('model.pt2')"
    if recipe.network.module is not None:
        example = "run.export('model.pt2', module=module, example=inputs)"
    return [
        f"A program of `torch.export`, which `{example}` writes, runs without Cotswold:",
        "",
        "```python",
        "import json",
        "import torch",
        "",
        'about = {"cotswold.json": ""}',
        'program = torch.export.load("model.pt2", extra_files=about).module()',
        'about = json.loads(about["cotswold.json"])  # preparation of the samples, names of the classes',
        "outputs = program(inputs)  # a batch of prepared samples",
        "```",
    ]
