"""Hosts that share no processes and no /tmp."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cotswold.testing import Hosts, Machines, is_running, wait_until, why_not

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
TIMEOUT_S = 30


def said(machines: Machines, host: int, script: str, output: Path) -> list[str]:
    """Return the output of a program on a host."""
    process = machines.start(host, ["sh", "-c", script], dict(os.environ), output)
    assert process.wait(TIMEOUT_S) == 0, output.read_text()
    return output.read_text().splitlines()


def test_a_host_sees_its_own_processes_and_its_own_tmp(tmp_path: Path) -> None:
    with Hosts(2) as hosts, Machines(hosts, tmp_path / "machines") as machines:
        waiting = machines.start(0, ["sleep", "60"], dict(os.environ), tmp_path / "waiting")
        wait_until(lambda: Path(f"/proc/{waiting.pid}/comm").read_text() == "sleep\n", "it has begun")
        assert machines.processes(0) == [waiting.pid]
        look = "touch /tmp/$1; ls /tmp; grep -hc sleep /proc/[0-9]*/comm | grep -c 1"
        assert said(machines, 0, f"set -- one; {look}", tmp_path / "0") == ["one", "1"]
        assert said(machines, 1, f"set -- two; {look} || true", tmp_path / "1") == ["two", "0"]
        assert [*machines.own_tmp(1).iterdir()] == [machines.own_tmp(1) / "two"]
    assert not is_running(waiting.pid) and waiting.wait(TIMEOUT_S) < 0


def test_what_is_shared_is_seen_by_all(tmp_path: Path) -> None:
    shared = Path(subprocess.check_output(["mktemp", "-d", "/tmp/cotswold-shared-XXXXXX"], text=True).strip())
    try:
        (shared / "seen").touch()
        with Hosts(2) as hosts, Machines(hosts, tmp_path / "machines", [shared]) as machines:
            for host in range(2):
                assert said(machines, host, f"ls {shared}", tmp_path / f"{host}") == ["seen"]
    finally:
        (shared / "seen").unlink()
        shared.rmdir()


def test_a_signal_reaches_a_program_and_an_orphan_ends_with_its_host(tmp_path: Path) -> None:
    script = "trap 'exit 7' TERM; setsid sleep 60 & echo ready; while :; do sleep 0.02; done"
    with Hosts(1) as hosts, Machines(hosts, tmp_path / "machines") as machines:
        process = machines.start(0, ["sh", "-c", script], dict(os.environ), tmp_path / "printed")
        wait_until(lambda: "ready" in (tmp_path / "printed").read_text(), "it is ready")
        process.terminate()
        assert process.wait(TIMEOUT_S) == 7
        wait_until(lambda: len(machines.processes(0)) == 1, "its last sleep is over")
        (orphan,) = machines.processes(0)
    wait_until(lambda: not is_running(orphan), "the orphan has ended")


def test_this_process_starts_others_as_before(tmp_path: Path) -> None:
    with Hosts(1) as hosts, Machines(hosts, tmp_path / "machines"):
        own = str(Path("/proc/self/ns/pid").readlink())
        assert subprocess.check_output(["readlink", "/proc/self/ns/pid"], text=True).strip() == own
