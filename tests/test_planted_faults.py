"""Twenty faults of one line each, planted in a copy of the package: a short test finds every one.

The list keeps `make test` honest: a test that is moved or made faster must still find what it found before.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import cotswold

SOURCE = Path(cotswold.__file__).parent
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class PlantedFault:
    """A line, the wrong line in its place, and the test file that must fail."""

    module: str
    right: str
    wrong: str
    test: str


FAULTS = (
    PlantedFault(
        "server/tree.py", "if node.index % 2 == 0 else", "if node.index % 2 else", "server/test_tree.py"
    ),
    PlantedFault(
        "server/portions.py",
        "if claim is None or claim.number == number:",
        "if claim is None:",
        "server/test_portions.py",
    ),
    PlantedFault(
        "server/portions.py",
        "bool(portions) and all(portion in self._wanted",
        "bool(portions) and any(portion in self._wanted",
        "server/test_portions.py",
    ),
    PlantedFault(
        "server/ranges.py",
        "if first and ranges[first - 1][1] > start:",
        "if first and ranges[first - 1][1] > stop:",
        "server/test_samples.py",
    ),
    PlantedFault(
        "server/samples.py",
        "        self._divide(joined(*parts), parts)",
        "        self._divide((), parts)",
        "server/test_samples.py",
    ),
    PlantedFault(
        "server/updating.py",
        "if applied and size(applied) < size(update.samples):",
        "if applied and size(applied) > size(update.samples):",
        "server/test_updating.py",
    ),
    PlantedFault(
        "server/numbering.py",
        "now - self._sent < self.admitted.retry_seconds",
        "now - self._sent < 2 * self.admitted.retry_seconds",
        "server/test_numbering.py",
    ),
    PlantedFault(
        "server/staleness.py",
        'return 0.0 if self.policy == "drop" else self.bound / staleness',
        'return 0.0 if self.policy == "drop" else 1 / staleness',
        "server/test_updating.py",
    ),
    PlantedFault(
        "server/admission.py",
        "if not are_apart(update.samples):",
        "if not update.samples and not are_apart(update.samples):",
        "server/test_updating.py",
    ),
    PlantedFault(
        "server/copies/lease.py",
        "asked + seconds * (1 - DRIFT)",
        "asked + seconds * (1 + DRIFT)",
        "server/test_numbering.py",
    ),
    PlantedFault(
        "cluster/layout.py",
        "servers[(start + stop) * len(servers) // (2 * size)]  # where",
        "servers[start * len(servers) // (2 * size)]  # where",
        "cluster/test_sets.py",
    ),
    PlantedFault(
        "cluster/sets.py",
        "count = max(1, round(fraction * len(whole)))",
        "count = max(1, int(fraction * len(whole)))",
        "cluster/test_sets.py",
    ),
    PlantedFault(
        "cluster/fitting.py",
        "bound = message_bytes // (_STATES * vectors)",
        "bound = message_bytes // vectors",
        "cluster/test_fitting.py",
    ),
    PlantedFault(
        "training/phases.py",
        "for phase in phases if phase.part == part)",
        "for phase in phases)",
        "training/test_prolonging.py",
    ),
    PlantedFault(
        "training/budget.py",
        "gradient_bytes=parameters // filters.grid[0] * FLOAT_BYTES",
        "gradient_bytes=parameters // filters.grid[0]",
        "training/test_budget.py",
    ),
    PlantedFault(
        "training/scoring.py",
        "self._loss += loss * found.weight",
        "self._loss += loss",
        "training/test_scoring.py",
    ),
    PlantedFault(
        "data/order.py", "(self.split.seed, epoch, 2)", "(self.split.seed, 0, 2)", "data/test_order.py"
    ),
    PlantedFault(
        "data/order.py",
        "return rows[rank * samples // world_size : (rank + 1) * samples // world_size]",
        "return rows[samples // world_size * rank : samples // world_size * (rank + 1)]",
        "data/test_order.py",
    ),
    PlantedFault(
        "data/splits.py",
        "held = 0 if len(validation) else int(len(drawn) * request.validation)",
        "held = int(len(drawn) * request.validation)",
        "data/test_splits.py",
    ),
    PlantedFault(
        "data/labelling.py",
        "if len(labels) != samples:",
        "if len(labels) < samples:",
        "data/test_vectors.py",
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.module}: {fault.wrong[:40]}")
def test_a_planted_fault_replaces_one_line_that_is_there(fault: PlantedFault) -> None:
    assert (SOURCE / fault.module).read_text().count(fault.right) == 1
    assert (ROOT / "tests" / fault.test).exists()


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.module}: {fault.wrong[:40]}")
def test_a_short_test_finds_the_planted_fault(fault: PlantedFault, tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "cotswold", ignore=shutil.ignore_patterns("__pycache__"))
    module = tmp_path / "cotswold" / fault.module
    module.write_text(module.read_text().replace(fault.right, fault.wrong))
    words = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*words, str(ROOT / "tests" / fault.test)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout[-2000:]
