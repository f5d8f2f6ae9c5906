"""benchmarks/call_path.py: the files that a step and a supervised run enter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "call_path.py"


@pytest.mark.parametrize(("words", "most"), [((), 17), (("--run",), 158)], ids=["step", "run"])
def test_few_files_are_entered(words: tuple[str, ...], most: int) -> None:
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), *words]
    text = subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout
    counted = re.search(r"^(\d+) files, (\d+) returns", text, re.MULTILINE)
    assert counted is not None, text
    assert 5 < int(counted[1]) <= most
