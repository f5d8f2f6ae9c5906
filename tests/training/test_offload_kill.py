"""Real SIGKILLs while a stack is trained from the disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.training.small import greedy

KILLS = 10

SCRIPT = """
import json, os, random, signal, sys, time
from pathlib import Path
import torch
from cotswold.run import Checkpoint, Checkpoints
from cotswold.training import Resume, Stop, open_job

recipe, folder, kills = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
random.seed(0)

def train(run):
    job = open_job(recipe, run, stores=folder / "stores", resume=Resume.IF_STARTED)
    return job.train(watch=lambda event: None, stop=Stop())

def last(run):
    checkpoint = Checkpoint(Checkpoints(run / "checkpoints").paths()[-1])
    return {name: tensor.contiguous().view(torch.uint8).numpy().tobytes() for name, tensor in
            ((name, checkpoint.read(name).reshape(-1)) for name in checkpoint.names)}

began = time.monotonic()
train(folder / "whole")
once = time.monotonic() - began
killed = midway = 0
run = folder / "cut"
for _ in range(kills):
    child = os.fork()
    if child == 0:
        train(run)
        os._exit(0)
    time.sleep(random.uniform(0, 0.2 * once))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    killed += os.WIFSIGNALED(status)
    midway += (run / "offload").exists()
finished = train(run)
print(json.dumps({
    "finished": finished, "same": last(run) == last(folder / "whole"), "killed": killed, "midway": midway,
}))
"""


def test_a_run_that_is_killed_again_and_again_ends_with_the_bits_of_one_that_was_not(
    pictures: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "small.toml"
    recipe.write_text(greedy(pictures, more='offload = "disk"\ncheckpoint_minutes = 0.002'))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(recipe), str(tmp_path), str(KILLS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["same"] and result["finished"], result
    assert result["killed"] > KILLS // 3 and result["midway"] > 0, result
