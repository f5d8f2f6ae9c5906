"""A process is killed at any time of a write."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from tests.support.replication.block_states import state_at
from tests.warm import PYTHON

from cotswold.replication.disk import BlockStore

KILLS = 12


@pytest.mark.soak
def test_after_every_kill_each_bucket_is_one_state_that_was_written_and_none_that_was_reported_is_lost(
    tmp_path: Path,
) -> None:
    folder, chance, reported = tmp_path / "store", random.Random(5), dict[str, int]()
    for _ in range(KILLS):
        with subprocess.Popen(
            [*PYTHON, "-m", "tests.support.replication.block_states", str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        ) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(chance.randrange(1, 40))]
            writer.kill()
            lines += writer.stdout.read().splitlines()
        for number, index in (line.split() for line in lines if line.count(" ")):
            reported[f"bucket {number}"] = int(index)
        with BlockStore(folder) as store:
            assert set(reported) <= set(store.heads())
            for bucket in store.heads():
                found = store.read(bucket)
                assert found.index >= reported.get(bucket, 0)
                assert found.head == f"head {bucket} {found.index}".encode()
                assert found.blocks == state_at(bucket, found.index)
    assert sum(reported.values()) > KILLS
