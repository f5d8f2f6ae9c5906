"""Real SIGKILLs while checkpoints are written."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

KILLS = 25
ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, os, random, signal, sys, time
import torch
from cotswold.run import Checkpoints

folder, kills = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
random.seed(0)

def tensors(step):
    return {str(i): torch.full((200_000,), float(step + i)) for i in range(6)}

checkpoints = Checkpoints(folder, keep=2)
began = time.monotonic()
checkpoints.save(1, tensors(1), {"step": 1})
once = time.monotonic() - began

reports = []
for _ in range(kills):
    before = checkpoints.latest().checkpoint.step
    child = os.fork()
    if child == 0:
        for step in range(before + 1, before + 100):
            checkpoints.save(step, tensors(step), {"step": step})
        os._exit(0)
    time.sleep(random.uniform(0, 3 * once))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found, skipped = checkpoints.latest()
    expected = tensors(found.step)
    reports.append({
        "before": before, "after": found.step, "state": found.state["step"], "skipped": skipped,
        "partial": any(name.endswith(".partial") for name in os.listdir(folder)),
        "sound": all(torch.equal(found.read(name), expected[name]) for name in expected),
    })
checkpoints.save(10_000, tensors(0), {})
print(json.dumps({"reports": reports, "left": sorted(os.listdir(folder))}))
"""


def test_a_kill_at_any_moment_leaves_a_sound_checkpoint_no_older_than_before(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "checkpoints"), str(KILLS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    reports = result["reports"]
    assert len(reports) == KILLS
    for report in reports:
        assert report["sound"] and report["skipped"] == [], report
        assert report["after"] == report["state"] >= report["before"], report
    assert any(report["partial"] for report in reports)  # some were killed in the middle of writing
    assert any(report["after"] > report["before"] for report in reports)  # and some later
    assert len(result["left"]) == 2 and result["left"][-1] == "00010000"


def killed(folder: Path, *more: str) -> list[dict[str, Any]]:
    """What `killing` finds after each kill of a rank."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.run.killing", str(folder), *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_a_rank_killed_at_any_moment_leaves_a_sound_checkpoint_and_no_rank_waiting(tmp_path: Path) -> None:
    found = killed(tmp_path / "checkpoints", str(KILLS))
    assert len(found) == KILLS
    for each in found:
        assert each["sound"] and each["after"] >= each["before"], each
        assert sorted(each["ended"]) == [-signal.SIGKILL] + [3] * (len(each["ended"]) - 1), each
    assert any(each["partial"] for each in found)
    assert any(each["after"] > each["before"] for each in found)


@pytest.mark.slow
def test_a_rank_killed_before_any_of_its_calls_leaves_the_checkpoint_before_or_the_new_one(
    tmp_path: Path,
) -> None:
    found = killed(tmp_path / "checkpoints")
    for each in found:
        assert each["sound"], each
        assert each["after"] in (1, 2), each
    for victim in range(3):
        steps = [each["after"] for each in found if each["victim"] == victim]
        assert steps == sorted(steps) and {*steps} == {1, 2}, steps  # once it is there it stays
    assert len(found) > 30
