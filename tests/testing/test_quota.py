"""Processes limited to a share of a core."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cotswold.errors import MachineError, UserError
from cotswold.testing import CpuQuota, why_no_quota

needed = pytest.mark.skipif(
    why_no_quota() is not None, reason="needs root and control groups that may be written"
)
SPIN = """
import sys, time
sys.stdin.readline()
begun, used = time.monotonic(), time.process_time()
while time.monotonic() - begun < 0.6:
    pass
print((time.process_time() - used) / (time.monotonic() - begun))
"""


@needed
def test_a_process_computes_for_its_share_of_the_time() -> None:
    with (
        CpuQuota(0.25) as quota,
        subprocess.Popen(
            [sys.executable, "-c", SPIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as spinning,
    ):
        quota.add(spinning.pid)
        share, _ = spinning.communicate("go\n", timeout=60)
    assert 0 < float(share) < 0.32


@needed
def test_a_process_outlives_its_quota_and_nothing_is_left_of_it() -> None:
    def groups() -> list[Path]:
        return list(Path("/sys/fs/cgroup").glob(f"**/cotswold-{os.getpid()}-*"))

    with subprocess.Popen(["sleep", "60"]) as process:
        with CpuQuota(0.5) as quota:
            quota.add(process.pid)
            assert groups()
        assert process.poll() is None and not groups()
        process.kill()


@needed
def test_a_quota_is_a_grant_that_a_process_can_read() -> None:
    body = "import sys; sys.stdin.readline(); from cotswold.host import granted_cores; print(granted_cores())"
    with (
        CpuQuota(1.5) as quota,
        subprocess.Popen(
            [sys.executable, "-c", body], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as asking,
    ):
        quota.add(asking.pid)
        said, _ = asking.communicate("go\n", timeout=60)
    assert said == "1\n"


@needed
def test_a_process_that_has_ended_gets_no_quota() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with CpuQuota(0.5) as quota, pytest.raises(MachineError, match=f"quota for process {gone.pid}"):
        quota.add(gone.pid)


@pytest.mark.parametrize("cores", [0, -1, 0.001, float("nan"), float("inf")])
def test_a_quota_of_nothing_is_refused(cores: float) -> None:
    with pytest.raises(UserError, match="cores must be"):
        CpuQuota(cores)
