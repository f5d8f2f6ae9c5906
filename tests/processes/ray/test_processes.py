"""Processes on machines that joined Ray. Here this machine acts as two."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.ports import free_ports
from tests.ray_token import RAY_TOKEN

from cotswold.errors import UserError
from cotswold.host import Call, Token
from cotswold.host.processes import LOST
from cotswold.processes.ray.node import join_head, start_head
from cotswold.processes.ray.processes import RayProcesses
from cotswold.testing import ProcessesContract, is_running, stopped, wait_until
from cotswold.testing.processes import ended, play

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install '.[cluster]'"),
]
READY_SECONDS = 60


@pytest.fixture(scope="module")
def head() -> Iterator[str]:
    """Yield the address of a first machine: this one."""
    with started_head() as address:
        yield address


@contextmanager
def started_head() -> Iterator[str]:
    """Yield the address of the first machine of a separate cluster."""
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder,  # names of sockets are short
        free_ports(2) as (port, client_port),
    ):
        words = [f"--temp-dir={folder}", f"--ray-client-server-port={client_port}"]
        child = start_head(RAY_TOKEN, port=port, cores=2, words=words)
        try:
            wait_until(lambda: listens(port) or child.code() is not None, "Ray listens", READY_SECONDS)
            yield f"127.0.0.1:{port}"
        finally:
            child.send(signal.SIGTERM)
            select.select([child], [], [], 20)
            child.end()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


class TestRayProcesses(ProcessesContract):
    """The contract on one machine, like on any host."""

    address = ""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def joined(cls, head: str) -> None:
        cls.address = head

    @classmethod
    def make(cls) -> RayProcesses:
        return RayProcesses(cls.address, RAY_TOKEN, modules=["json"])


@pytest.fixture
def processes(head: str) -> Iterator[RayProcesses]:
    found = RayProcesses(head, RAY_TOKEN, modules=["json"])
    yield found
    found.close()


@pytest.mark.soak
def test_a_machine_joins_and_is_lost(head: str, processes: RayProcesses, tmp_path: Path) -> None:
    first = processes.start(Call("first", play("wait")))
    assert len(processes.machines()) == 1
    second = join_head(head, RAY_TOKEN, cores=3)
    try:
        wait_until(lambda: len(processes.machines()) == 2, "a machine has joined", READY_SECONDS)
        assert processes.refused() == {}
        (joined,) = processes.machines().keys() - {first.machine}
        lost = processes.start(Call("lost", play("wait")), machine=joined)
        assert (first.machine, lost.machine) == (socket.gethostname(), joined) and is_running(lost.pid)
    finally:
        second.end()
    assert ended(lost) == LOST
    assert lost.why().startswith(f"was lost with its machine {joined}")
    wait_until(lambda: not is_running(lost.pid), "it has ended")
    wait_until(lambda: list(processes.machines()) == [first.machine], "it is known to be gone", 60)
    with pytest.raises(UserError, match=f"cannot run on {joined}; usable machines: {first.machine}"):
        processes.start(Call("late", play("wait")), machine=joined)
    assert first.code() is None


@pytest.mark.soak
def test_an_agent_that_dies_is_replaced(processes: RayProcesses) -> None:
    lost = processes.start(Call("lost", play("wait")))
    os.kill(parent_of(parent_of(lost.pid)), signal.SIGKILL)  # the agent's is the fork server's parent
    assert ended(lost) == LOST
    wait_until(lambda: not is_running(lost.pid), "it has ended")
    wait_until(lambda: bool(processes.machines()), "another agent is ready", READY_SECONDS)
    following = processes.start(Call("following", play("end_with"), {"code": 3}))
    assert (ended(following), following.machine) == (3, lost.machine)


def test_a_head_that_stands_still_keeps_nobody_waiting(head: str, processes: RayProcesses) -> None:
    machine = processes.start(Call("first", play("wait"))).machine
    with stopped(server_of(head)):
        for _ in range(3):
            began = time.monotonic()
            assert list(processes.machines()) == [machine]
            assert time.monotonic() - began < 1.0
        assert ended(processes.start(Call("meanwhile", play("end_with"), {"code": 3}))) == 3
    wait_until(lambda: list(processes.machines()) == [machine], "it is heard again")
    assert processes.start(Call("afterwards", play("wait"))).machine == machine


def server_of(head: str) -> int:
    """Return the process of Ray's head at an address."""
    port = f"--gcs_server_port={head.rpartition(':')[2]}".encode()
    return next(
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and port in (entry / "cmdline").read_bytes().split(b"\0")
    )


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


FORSAKEN = """
import os, sys, time
from cotswold.processes.ray.processes import RayProcesses
from cotswold.host import Call, Token
processes = RayProcesses(sys.argv[1], Token(sys.argv[2]), modules=["json"])
processes.start(Call("waiter", "signal:pause"))
print("ready", flush=True)
sys.stdin.readline()
time.sleep(1)
began = time.process_time()
time.sleep(3)
print(time.process_time() - began, flush=True)
"""


@pytest.mark.soak
def test_a_program_whose_head_is_gone_rests() -> None:
    """Ray's own thread for error messages polls without a pause."""
    with started_head() as address:
        words = [sys.executable, "-c", FORSAKEN, address, RAY_TOKEN.text]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
            assert driver.stdout is not None and driver.stdin is not None
            assert driver.stdout.readline() == "ready\n"
            os.kill(server_of(address), signal.SIGKILL)
            wait_until(lambda: not listens(int(address.rpartition(":")[2])), "nobody listens")
            driver.stdin.write("\n")
            driver.stdin.flush()
            seconds = float(driver.stdout.readline())
            driver.kill()
    assert seconds < 0.5


DRIVER = """
import os, signal, sys
from pathlib import Path
from cotswold.processes.ray.processes import RayProcesses
from cotswold.errors import CotswoldError
from cotswold.host import Call, Token
before = signal.getsignal(signal.SIGTERM)
try:
    processes = RayProcesses(sys.argv[1], Token(sys.argv[2]), modules=["json"])
except CotswoldError as error:
    sys.exit(str(error))
assert signal.getsignal(signal.SIGTERM) == before
print(processes.start(Call("waiter", "signal:pause")).pid, flush=True)
signal.pause()
"""


def test_processes_end_with_a_program_that_is_killed(head: str) -> None:
    words = [sys.executable, "-c", DRIVER, head, RAY_TOKEN.text]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pid = int(driver.stdout.readline())
        assert is_running(pid)
        driver.kill()
    wait_until(lambda: not is_running(pid), "the process has ended", READY_SECONDS)


TWICE = """
import sys
from cotswold.api.threads import own_environment
from cotswold.processes.ray.processes import RayProcesses
from cotswold.host import Call, Token
for _ in range(2):
    with own_environment():
        processes = RayProcesses(sys.argv[1], Token(sys.argv[2]), modules=["json"])
        print(processes.start(Call("waiter", "signal:pause")).pid)
        processes.close()
"""


def test_a_program_joins_again_after_its_environment_was_given_back(head: str) -> None:
    words = [sys.executable, "-c", TWICE, head, RAY_TOKEN.text]
    environ = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, len(done.stdout.split())) == (0, 2), done.stderr[-500:]


def test_a_program_with_another_token_is_not_let_in(head: str) -> None:
    words = [sys.executable, "-c", DRIVER, head, "x" * 64]
    environ = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert (
        done.returncode == 1 and f"the machines at {head} have another token" in done.stderr.splitlines()[-1]
    )
    assert "gcs_client" not in done.stderr  # Ray's own log


@pytest.mark.soak
def test_a_machine_with_another_token_does_not_join(head: str, processes: RayProcesses) -> None:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
    child = join_head(head, Token("x" * 64), cores=1, environ=environ)
    try:
        assert ended(child) != 0
    finally:
        child.end()
    assert len(processes.machines()) == 1
