"""Stopping and resuming of processes."""

from __future__ import annotations

import signal
import subprocess

import pytest

from cotswold.host.process_info import is_stopped
from cotswold.testing import is_running, stopped, wait_until


def test_a_process_stands_still_inside_the_block_alone() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        with stopped(process.pid):
            assert is_stopped(process.pid) and is_running(process.pid)
        wait_until(lambda: not is_stopped(process.pid), "it goes on")
        process.kill()
        wait_until(
            lambda: not is_running(process.pid), "it has ended"
        )  # though nobody has asked for its code


def test_a_process_may_be_killed_while_it_stands_still() -> None:
    with subprocess.Popen(["sleep", "60"]) as process, stopped(process.pid):
        process.kill()
        assert process.wait() == -signal.SIGKILL


def test_what_never_holds_is_named() -> None:
    with pytest.raises(TimeoutError, match=r"after 0.01 s it is not so that pigs fly"):
        wait_until(lambda: False, "pigs fly", seconds=0.01)
