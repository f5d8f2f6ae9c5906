"""Processes told apart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from cotswold.launch.process import identity, is_stopped, kill

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
PRINT = (
    "from cotswold.launch.process import identity; import time; print(identity(), flush=True); time.sleep(60)"
)


def test_a_process_is_ended_by_its_identity_also_when_it_is_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", PRINT], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        who = process.stdout.readline().strip()
        process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 10
        while not is_stopped(process.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        kill(who)
        assert process.wait(10) == -signal.SIGKILL


def test_a_process_that_has_the_number_of_another_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", PRINT], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        host, pid, started = process.stdout.readline().split()
        kill(f"{host} {pid} {int(started) + 1}")
        kill(f"another-{host} {pid} {started}")
        kill("")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        process.kill()


def test_a_process_that_runs_is_not_stopped() -> None:
    assert identity().split()[1] == str(os.getpid()) and not is_stopped(os.getpid())
