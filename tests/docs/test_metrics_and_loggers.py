"""docs/metrics.md and docs/loggers.md: all names are listed, and their classes work in a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.training.batch_runs import events
from tests.support.training.runs import finish
from torch import nn
from torch.utils.data import TensorDataset

from cotswold.recipe.schema import SupervisedTraining
from cotswold.run.loggers.registry import LOGGERS
from cotswold.training import open_module_job
from cotswold.training.components import Components
from cotswold.training.metrics.metric_set import MetricSet
from cotswold.training.metrics.registry import METRICS

DOCS = Path(__file__).parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def class_of(name: str, heading: str) -> Any:
    """Return the class that the first block of Python below a heading defines."""
    (block, *_) = re.findall(r"```python\n(.*?)```", page(name).partition(f"## {heading}\n")[2], re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(block, namespace)
    return namespace[re.findall(r"^class (\w+)", block, re.MULTILINE)[0]]


@pytest.mark.parametrize(("name", "known"), [("metrics.md", METRICS), ("loggers.md", LOGGERS)])
def test_the_table_lists_every_name(name: str, known: dict[str, object]) -> None:
    rows = [line.partition("|")[2].partition("|")[0] for line in page(name).splitlines() if line[:3] == "| `"]
    assert {*known} <= {each for row in rows for each in re.findall(r"`([^`]+)`", row)}


def test_the_classes_of_the_pages_work_in_a_run(tmp_path: Path) -> None:
    metric, logger = class_of("metrics.md", "Your own metric")(), class_of("loggers.md", "Your own logger")()
    x = torch.arange(40.0).reshape(20, 2) / 40
    job = open_module_job(
        nn.Linear(2, 1),
        TensorDataset(x, x.sum(1, keepdim=True)),
        loss="squared_error",
        directory=tmp_path / "run",
        settings=SupervisedTraining(epochs=2, batch_size=4, metrics=["r2"]),
        validation=0.2,
        components=Components(metrics=(metric,), loggers=(logger,)),
    )
    finish(job)
    found = events(tmp_path / "run", "validation")
    assert [each["loss"] for each in found] == logger.found
    assert all(float(str(each["largest_error"])) > 0 for each in found)


def test_the_states_of_the_page_merge() -> None:
    make = class_of("metrics.md", "Your own metric")
    sets = [MetricSet([make()], nn.MSELoss()) for _ in range(2)]
    for number, each in enumerate(sets):
        each.update(torch.full((3, 1), float(number + 1)), torch.zeros(3, 1))
    sets[0].merge([each.state() for each in sets])
    assert sets[0].compute() == {"largest_error": 2.0}
