"""Real SIGKILLs while a stack is trained from disk, one in every phase."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.support.training.small_recipes import greedy
from tests.warm import PYTHON

SCRIPT = """
import json, os, signal, sys
from pathlib import Path
import torch
from cotswold.checkpoint import Checkpoint, CheckpointManager, SealedChunk
from cotswold.checkpoint.manifest import Manifest
from cotswold.training import Resume, open_job
from cotswold.run import Stop
from cotswold.training.parameters.offload.parameters import OffloadedParameters
from cotswold.training.parameters.offload.row_files import RowFiles

recipe, folder = Path(sys.argv[1]), Path(sys.argv[2])
torch.set_num_threads(1)
os.fsync = lambda file: None  # matters to power cuts alone, and takes most of the time here

def train(run):
    job = open_job(recipe, run, stores=folder / "stores", resume=Resume.IF_STARTED)
    return job.train(watch=lambda event: None, stop=Stop())

def last(run):
    checkpoint = Checkpoint(CheckpointManager(run / "checkpoints").paths()[-1])
    return {name: tensor.contiguous().view(torch.uint8).numpy().tobytes() for name, tensor in
            ((name, checkpoint.read(name).reshape(-1)) for name in checkpoint.names)}

def killed_before(owner, name, number):
    real, left = getattr(owner, name), number
    def dying(*words, **named):
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return real(*words, **named)
    setattr(owner, name, dying)

train(folder / "whole")
run = folder / "cut"
report = {}
for owner, name, number in (
    (RowFiles, "write", 3),  # while the first rows are made
    (RowFiles, "write", 40),  # behind a step
    (SealedChunk, "write", 5),  # inside a save, in the middle of its links
    (Manifest, "write", 2),  # when all its links are there
    (CheckpointManager, "_prune", 2),  # between the renaming and the removal of the oldest
    (RowFiles, "load", 1),  # while a checkpoint is loaded
    (RowFiles, "read", 30),  # ahead of a step
    (OffloadedParameters, "__exit__", 0),  # when everything is saved and the rows are to go
):
    child = os.fork()
    if child == 0:
        killed_before(owner, name, number)
        train(run)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    report[f"{owner.__name__}.{name} {number}"] = [status, (run / "offload").exists()]
finished = train(run)
print(json.dumps({"finished": finished, "same": last(run) == last(folder / "whole"), "killed": report,
                  "left": (run / "offload").exists()}))
"""


@pytest.mark.soak
def test_a_run_that_is_killed_in_every_phase_ends_with_the_bits_of_one_that_was_not(
    images: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "small.toml"
    recipe.write_text(greedy(images, more='offload = "disk"\ncheckpoint_minutes = 0.000001'))
    done = subprocess.run(
        [*PYTHON, "-c", SCRIPT, str(recipe), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(map(tuple, result["killed"].values())) == {(-9, True)}, result
    assert result["same"] and result["finished"] and not result["left"], result
