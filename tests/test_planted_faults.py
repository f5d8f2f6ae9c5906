"""Twenty faults of one line each, planted in a copy of the package: a short test finds every one.

The list protects `make test`: a moved or faster test must still find its fault.
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
    """A line, its wrong version, and the test file that must fail."""

    module: str
    right: str
    wrong: str
    test: str


FAULTS = (
    PlantedFault(
        "shards/core/sum_tree.py",
        "if node.index % 2 == 0 else",
        "if node.index % 2 else",
        "shards/core/test_sum_tree.py",
    ),
    PlantedFault(
        "batch/core/portion_ledger.py",
        "if claim is None or claim.number == number:",
        "if claim is None:",
        "batch/core/test_portion_ledger.py",
    ),
    PlantedFault(
        "batch/core/portion_ledger.py",
        "bool(portions) and all(portion in self._missing",
        "bool(portions) and any(portion in self._missing",
        "batch/core/test_portion_ledger.py",
    ),
    PlantedFault(
        "wire/ranges.py",
        "if first and ranges[first - 1][1] > start:",
        "if first and ranges[first - 1][1] > stop:",
        "shards/core/test_sample_ledger.py",
    ),
    PlantedFault(
        "shards/core/sample_ledger.py",
        "        self._divide(union(*parts), parts)",
        "        self._divide((), parts)",
        "shards/core/test_sample_ledger.py",
    ),
    PlantedFault(
        "paramserver/core/update_server.py",
        "if applied and size(applied) < size(update.samples):",
        "if applied and size(applied) > size(update.samples):",
        "paramserver/core/test_update_server.py",
    ),
    PlantedFault(
        "paramserver/core/update_sequence.py",
        "now - self._sent_at < self.admitted.retry_seconds",
        "now - self._sent < 2 * self.admitted.retry_seconds",
        "paramserver/core/test_update_sequence.py",
    ),
    PlantedFault(
        "paramserver/core/staleness.py",
        'return 0.0 if self.policy == "drop" else self.bound / staleness',
        'return 0.0 if self.policy == "drop" else 1 / staleness',
        "paramserver/core/test_update_server.py",
    ),
    PlantedFault(
        "shards/core/admission.py",
        "if not is_valid(update.samples):",
        "if not update.samples and not is_valid(update.samples):",
        "paramserver/core/test_update_server.py",
    ),
    PlantedFault(
        "replication/replica/lease.py",
        "asked + seconds * (1 - DRIFT)",
        "asked + seconds * (1 + DRIFT)",
        "paramserver/core/test_update_sequence.py",
    ),
    PlantedFault(
        "shards/runtime/layout.py",
        "servers[(start + stop) * len(servers) // (2 * size)]  # the",
        "servers[start * len(servers) // (2 * size)]  # the",
        "batch/runtime/test_sample_sets.py",
    ),
    PlantedFault(
        "batch/runtime/sample_sets.py",
        "count = max(1, round(fraction * len(whole)))",
        "count = max(1, int(fraction * len(whole)))",
        "batch/runtime/test_sample_sets.py",
    ),
    PlantedFault(
        "replication/limits.py",
        "bound = message_bytes // (_STATES * vectors)",
        "bound = message_bytes // vectors",
        "replication/test_limits.py",
    ),
    PlantedFault(
        "training/strategies/phases.py",
        "for phase in phases if phase.part == part)",
        "for phase in phases)",
        "training/jobs/test_extend.py",
    ),
    PlantedFault(
        "training/jobs/memory_estimate.py",
        "gradient_bytes=parameters // filters.grid[0] * FLOAT_BYTES",
        "gradient_bytes=parameters // filters.grid[0]",
        "training/jobs/test_memory_estimate.py",
    ),
    PlantedFault(
        "training/scores.py",
        "self._loss += loss * weight",
        "self._loss += loss",
        "training/test_scores.py",
    ),
    PlantedFault(
        "data/loading/order.py",
        "(self.split.seed, epoch, 2)",
        "(self.split.seed, 0, 2)",
        "data/loading/test_order.py",
    ),
    PlantedFault(
        "data/loading/order.py",
        "return rows[rank * samples // world_size : (rank + 1) * samples // world_size]",
        "return rows[samples // world_size * rank : samples // world_size * (rank + 1)]",
        "data/loading/test_order.py",
    ),
    PlantedFault(
        "data/store/splits.py",
        "held = 0 if len(validation) else int(len(drawn) * request.validation)",
        "held = int(len(drawn) * request.validation)",
        "data/store/test_splits.py",
    ),
    PlantedFault(
        "data/sources/labels.py",
        "if len(labels) != samples:",
        "if len(labels) < samples:",
        "data/sources/test_vectors.py",
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
