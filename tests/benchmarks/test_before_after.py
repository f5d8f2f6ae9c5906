"""The comparison of two source trees, with the same tree twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def compare(*words: str) -> subprocess.CompletedProcess[str]:
    script = ROOT / "benchmarks" / "before_after.py"
    return subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, check=False)


def test_every_round_runs_both_trees_and_the_figures_are_kept(tmp_path: Path) -> None:
    words = ["--rounds", "2", "--case", "import cotswold", "--out", str(tmp_path)]
    done = compare("--before", str(ROOT / "src"), *words)
    assert done.returncode == 0, done.stderr
    (case,) = json.loads((tmp_path / "before_after.json").read_text())["cases"]
    assert case["case"] == "import cotswold" and case["before_seconds"] > 0 and case["after_over_before"] > 0
    assert f"{case['after_over_before']:.3f} of before" in done.stdout


def test_a_folder_without_a_tree_is_refused(tmp_path: Path) -> None:
    done = compare("--before", str(tmp_path))
    assert done.returncode == 2 and "has no package cotswold" in done.stderr
