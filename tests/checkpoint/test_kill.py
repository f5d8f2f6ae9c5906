"""Real SIGKILLs while checkpoints are written, one in every phase of a save."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.warm import PYTHON

ROOT = Path(__file__).parents[2]
KEPT = 2


def killed(folder: Path, size: int) -> list[dict[str, Any]]:
    """Return the findings of `killing` after each kill of one of ``size`` ranks."""
    done = subprocess.run(
        [*PYTHON, "-m", "tests.support.checkpoint.killed_writer", str(folder), str(size)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.soak
@pytest.mark.parametrize("size", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_kill_before_any_call_of_a_save_leaves_the_checkpoint_before_or_the_new_one_and_nobody_waiting(
    tmp_path: Path, size: int
) -> None:
    found = killed(tmp_path / "checkpoints", size)
    for each in found:
        assert each["sound"] and each["after"] in (2, 3), each
        assert each["whole"] >= KEPT, each
    for victim in range(size):
        kills = [each for each in found if each["victim"] == victim]
        steps = [each["after"] for each in kills]
        assert steps == sorted(steps) and {*steps} == {2, 3}, steps  # once it is there it stays
        *deaths, last = kills
        assert last["ended"] == [0] * size and last["whole"] == KEPT and not last["partial"], last
        for each in deaths:
            # the others hear of it at their next exchange; after the last there is none
            assert each["ended"][victim] == -signal.SIGKILL, each
            assert all(code in (0, 3) for code in each["ended"] if code != -signal.SIGKILL), each
    leader = [each for each in found if each["victim"] == 0]
    assert any(each["after"] == 2 and each["partial"] for each in leader)  # inside the save
    assert any(each["after"] == 3 and each["whole"] > KEPT for each in leader)  # before anything is removed
    assert any(each["after"] == 3 and each["whole"] == KEPT and each["partial"] for each in leader)
    assert len(found) > 15 * size
