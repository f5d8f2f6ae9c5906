"""`cotswold train --replicas`: processes that divide every batch, killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Desk
from tests.cli.test_grid import COMMAND, LONG, TIMEOUT, begun, kinds, ranks_of, said_by, wait_for
from tests.support.cli.command import cotswold

ranks = pytest.mark.usefixtures("cold_interpreters")  # a warm command has one more child


@pytest.mark.soak
@ranks
def test_a_killed_replica_is_named_and_the_run_resumes_from_its_checkpoint(
    desk: Desk, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = ("train", desk.layers_recipe, "--run", run, "--stores", desk.stores, "--replicas", "2", *LONG)
    process = begun(*COMMAND, *words, *TIMEOUT, "--restarts", "1", "--quiet")  # many validations fill a pipe
    wait_for(lambda: any((run / "checkpoints").glob("*/manifest.json")))
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    wait_for(lambda: "resumed" in kinds(run))
    process.send_signal(signal.SIGINT)
    said = said_by(process)
    assert process.returncode == 130, said
    assert "rank 1" in said and "SIGKILL" in said
    assert kinds(run)[-1] == "end"


@pytest.mark.soak
@ranks
def test_torchrun_starts_replicas_of_a_grid(desk: Desk, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--no-python", "--"]
    words = ("train", desk.layers_recipe, "--run", tmp_path / "run", "--stores", desk.stores)
    process = begun(*torchrun, *COMMAND, *words, "--replicas", "2", "--grid", "1x2")
    said = said_by(process)
    assert process.returncode == 0, said
    assert "2 replicas of 1x2 ranks" in said


def test_replicas_belong_to_supervised_and_need_a_sample_each(desk: Desk) -> None:
    said = cotswold("train", desk.stacks_recipe, "--replicas", "2")
    assert said.status == 2 and "mesh.replicas is for strategy supervised" in said.err
    said = cotswold("train", desk.layers_recipe, "--replicas", "8", "--set", "training.batch_size=4")
    assert said.status == 2 and "needs at least one sample" in said.err
    said = cotswold("train", desk.layers_recipe, "--replicas", "2", "--grid", "auto")
    assert said.status == 2 and "mesh.grid = auto is not possible" in said.err


def test_a_dry_run_tells_ranks_parts_of_a_batch_and_bytes(desk: Desk) -> None:
    words = ("train", desk.layers_recipe, "--replicas", "3", "--set", "mesh.grid=1x2", "--dry-run")
    said = cotswold(*words)
    assert said.status == 0, said.err
    assert "samples of a replica" in said.out and "2 or 3" in said.out
    found = json.loads(cotswold(*words, "--json").out)
    assert (found["ranks"], found["batch_size"]) == (6, 8)
    assert found["gradient_sum_bytes"] == 2 * 2 * 4 * found["parameters"]
