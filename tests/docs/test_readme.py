"""The README: its program runs, its lines fit their functions, its figures are those of the result files."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_help_texts import parses
from tests.warm import PYTHON

import cotswold

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BYTES_MOST = 7_000
SAMPLES = 3_000
RESULTS = ROOT / "benchmarks" / "results"


def test_it_is_short() -> None:
    assert len(README.encode()) <= BYTES_MOST


@pytest.mark.slow
def test_the_program_finishes_without_the_worker_that_it_kills(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    (tmp_path / "program.py").write_text(program)
    paths = os.pathsep.join(str(Path(each).absolute()) for each in sys.path if each)
    done = subprocess.run(
        [*PYTHON, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    status, loss, *workers = re.findall(r"[\w.-]+", done.stdout.splitlines()[-1])
    assert status == "finished" and float(loss) < 0.3
    assert len(workers) == 3 and {"worker-1", "worker-2"} < set(workers)
    lines = (tmp_path / "runs" / "sine" / "events.jsonl").read_text().splitlines()
    events: list[Mapping[str, Any]] = [json.loads(line) for line in lines]
    (place,) = (at for at, each in enumerate(events) if each["kind"] == "cluster_exited")
    assert events[place]["name"] == "worker-2" and "SIGKILL" in events[place]["reason"]
    counted = [each["samples"] for each in events if each["kind"] == "cluster_evaluation"]
    assert len(counted) >= 40 and set(counted) == {SAMPLES}
    assert any(each["kind"] == "cluster_evaluation" for each in events[place:]), "evaluations follow the kill"


def lines() -> Iterator[str]:
    """Yield the third cell of each row of the table of wants."""
    table = README.partition("| I have |")[2].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        yield row.split(" | ")[2].strip("` ")


@pytest.mark.parametrize("line", list(lines()))
def test_a_line_fits_its_function_or_command(line: str) -> None:
    if line.startswith("cotswold "):
        parses(line)
        return
    call = next(each for each in ast.walk(ast.parse(line)) if isinstance(each, ast.Call))
    found: Any = cotswold
    for name in ast.unparse(call.func).split(".")[1:]:
        found = getattr(found, name)
    inspect.signature(found).bind(*call.args, **{str(each.arg): each.value for each in call.keywords})


def test_figures_of_speed_are_those_of_the_result() -> None:
    found = json.loads((RESULTS / "plain-loops-intel-amx-1.json").read_text())
    rows = {(row["recipe"], row["what"].split(",")[0]): row["times_as_fast"] for row in found["rows"]}
    one, two, three = (f"{rows['faces', f'stack {number}']:.1f}" for number in (1, 2, 3))
    assert f"| {one}, {two} and {three} times as fast |" in README
    assert f"| {rows['adam-mnist', 'a step']:.2f} times as fast |" in README
    assert found["commit"][:8] in README and found["threads"] == 1


def test_figures_of_faults_are_those_of_the_result() -> None:
    found = json.loads((RESULTS / "fault-training.json").read_text())
    quiet, disturbed = sorted(found["trainings"], key=lambda each: bool(each["is_fire"]))
    rates = f"{disturbed['samples_a_second']:,.0f} samples a second, {quiet['samples_a_second']:,.0f} without"
    assert rates in README
    assert f"{len(disturbed['faults'])} faults" in README and found["interval"] == 15
    assert found["hosts"] == 5 and found["machine"]["cores"] == 2
    assert "Five hosts, network namespaces of one machine with two cores," in README
    assert "AMD EPYC (Zen 5), two cores, 8aa4ca48," in README, "the commit that recorded the figures"
    (counted,) = (each for each in disturbed["audits"] if each["audit"] == "every sample counts once")
    assert counted["holds"] and "0 torn, 0 refused, 0 lost" in counted["found"]
