"""Killed preparations and their processes."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.data.conftest import KILLED, files
from tests.warm import PYTHON

from cotswold.data import Preparation, Store, Transform, open_source, prepare
from cotswold.data.store.image_shards import ImageWork
from cotswold.data.store.layout import ShardSize
from cotswold.data.store.shard import StoreShard
from cotswold.data.store.worker_pool import WorkerPool
from cotswold.errors import BusyError, MachineError

SMALL = Preparation((16, 20))


def test_a_process_that_dies_is_told_whenever_it_does(photographs: Path, tmp_path: Path) -> None:
    plain = Preparation((16, 20), whiten=False)
    one, work = ShardSize(1, 1), ImageWork(open_source(photographs), tmp_path, plain)
    with WorkerPool(work, 2) as pool:
        shards = [StoreShard("train", n, n, one, np.array([n])) for n in range(300)]
        written = pool.write(shards, Transform(plain), {})
        next(written)
        for worker in multiprocessing.active_children():
            worker.kill()
            worker.join()
        with pytest.raises(MachineError, match="fewer jobs"):
            for _ in written:
                pass


@pytest.mark.parametrize("shards", [0, 7])
def test_a_preparation_killed_in_the_middle_goes_on_and_gives_the_same_store(
    shards: int, photographs: Path, tmp_path: Path, small_shards: None
) -> None:
    command = [*PYTHON, "-c", KILLED, str(photographs), str(tmp_path / "s"), str(shards)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    with pytest.raises(Exception, match="not a finished store"):
        Store(tmp_path / "s")
    source = open_source(photographs)
    resumed = prepare(source, tmp_path / "s", SMALL, jobs=1)
    whole = prepare(source, tmp_path / "whole", SMALL, jobs=1)
    assert resumed.reused == shards * 16
    assert resumed.identity == whole.identity
    assert files(tmp_path / "s") == files(tmp_path / "whole")


POOL = """
import os, sys
from cotswold.data.store import layout as store_layout
store_layout._SHARD_IMAGES_MAX = 16
from cotswold.data import Preparation, open_source, prepare
if __name__ == "__main__":
    def progress(done, total):
        print(done, flush=True)
        if done > 100:
            sys.stdin.read()
    prepare(open_source(sys.argv[1]), sys.argv[2], Preparation((16, 20)), jobs=2, progress=progress)
"""


@pytest.mark.slow
def test_the_processes_of_a_killed_preparation_end_and_the_next_one_goes_on(
    photographs: Path, tmp_path: Path, small_shards: None
) -> None:
    (tmp_path / "pool.py").write_text(POOL)
    command = [sys.executable, str(tmp_path / "pool.py"), str(photographs), str(tmp_path / "s")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        while int(running.stdout.readline()) <= 100:
            pass
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        workers = [int(pid) for pid in children.read_text().split()] if children.exists() else []
        with pytest.raises(BusyError, match="another process is preparing"):
            prepare(open_source(photographs), tmp_path / "s", SMALL, jobs=1)
        running.kill()
        running.stdout.read()  # ends when every process that inherited the pipe has ended
    assert all(not Path(f"/proc/{pid}/exe").exists() for pid in workers)
    resumed = prepare(open_source(photographs), tmp_path / "s", SMALL, jobs=1)
    assert resumed.reused > 0
    assert resumed.identity == prepare(open_source(photographs), tmp_path / "whole", SMALL, jobs=1).identity
