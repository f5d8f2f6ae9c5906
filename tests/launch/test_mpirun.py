"""Ranks started by a real mpirun; a mark in the environment identifies leftover processes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.launch import worker

from cotswold.host.token import VARIABLE

LIMIT_SECONDS = 50.0
LEAVING_SECONDS = 10.0
KINDS = {"Open MPI": ["--bind-to", "none", "--oversubscribe"], "MPICH": []}
NAMES = ("mpirun.openmpi", "mpirun.mpich", "mpiexec.hydra", "mpirun")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc for what is left behind"),
]


@dataclass(frozen=True)
class Mpirun:
    """An mpirun; ``mark`` is in the environment of all its processes, ``folder`` has a short name."""

    words: list[str]
    folder: str
    mark: str

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the worker as two ranks."""
        environ = {
            **os.environ,
            "COTSWOLD_TEST_MARK": self.mark,
            VARIABLE: self.mark,
            "OMP_NUM_THREADS": "1",
            "TMPDIR": self.folder,  # of Open MPI's sockets
            # it does not run for root unless told twice
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        command = [*self.words, "-n", "2", sys.executable, worker.__file__, *words]
        return subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )

    def left(self) -> list[int]:
        """Return the existing processes that it has started, directly or not."""
        return [
            int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and self._marked(path)
        ]

    def _marked(self, process: Path) -> bool:
        try:
            return f"COTSWOLD_TEST_MARK={self.mark}".encode() in (process / "environ").read_bytes()
        except OSError:
            return False


@pytest.fixture(params=list(KINDS))
def mpirun(request: pytest.FixtureRequest) -> Iterator[Mpirun]:
    """Yield the mpirun of each kind, and kill its remaining processes, also after a failed test."""
    words = installed(request.param)
    if words is None:
        pytest.skip(f"there is no mpirun of {request.param} here")
    with tempfile.TemporaryDirectory(prefix="mpi-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        found = Mpirun(words, folder, uuid.uuid4().hex)
        yield found
        end = time.monotonic() + LEAVING_SECONDS
        while (left := found.left()) and time.monotonic() < end:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


def installed(kind: str) -> list[str] | None:
    """Return the command of an installed mpirun, under any of its names."""
    for path in filter(None, map(shutil.which, NAMES)):
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
        if ("Open MPI" in said.stdout) == (kind == "Open MPI"):
            return [path, *KINDS[kind]]
    return None


def test_ranks_that_mpirun_starts_join_and_finish(mpirun: Mpirun) -> None:
    done = mpirun("--steps", "5")
    assert done.returncode == 0, done.stderr
    # mpirun may put the lines of two ranks into one
    assert sorted(re.findall(r"rank \d has finished", done.stdout)) == [
        "rank 0 has finished",
        "rank 1 has finished",
    ]


def test_a_rank_that_stands_still_under_mpirun_is_named_and_nobody_is_left(mpirun: Mpirun) -> None:
    done = mpirun("--on", "1", "stop")
    assert done.returncode != 0
    assert "cotswold: rank 1 on " in done.stderr and "has been silent for " in done.stderr
    end = time.monotonic() + LEAVING_SECONDS
    while mpirun.left():
        assert time.monotonic() < end, mpirun.left()
        time.sleep(0.01)
