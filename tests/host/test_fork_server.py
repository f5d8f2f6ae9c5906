"""Forked processes: the contract of all processes, and the fork server's own functions."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotswold.errors import MachineError, UserError
from cotswold.host import Call, ForkServer, fork_server, inherited
from cotswold.testing.processes import ProcessesContract, ended, play
from cotswold.testing.signals import is_running, stopped, wait_until

linux = pytest.mark.skipif(sys.platform != "linux", reason="a program is forked on Linux alone")
STARTER = """
import os, signal, sys
from pathlib import Path
from cotswold.host import Call, ForkServer

server = ForkServer.of_this_process({}) if sys.argv[1] == "fork" else ForkServer([])
processes = [server.start(Call(f"waiter {number}", "signal:pause")) for number in range(2)]
os.kill(processes[1].pid, signal.SIGSTOP)
Path(sys.argv[2]).with_suffix(".part").write_text(" ".join(str(each.pid) for each in processes))
Path(sys.argv[2]).with_suffix(".part").rename(sys.argv[2])
signal.pause()
"""


class TestForkServer(ProcessesContract):
    """A server started from the command line, with preloaded modules."""

    @classmethod
    def make(cls) -> ForkServer:
        return ForkServer(modules=["json"])


@linux
class TestForkOfThisProcess(ProcessesContract):
    """A server that is a fork of the tests' own process."""

    @classmethod
    def make(cls) -> ForkServer:
        return ForkServer.of_this_process({})


@pytest.fixture
def server() -> Iterator[ForkServer]:
    found = ForkServer(modules=["wave"])
    yield found
    found.close()


# what forks of this process do; they find these functions by this module's name


def use_inherited(path: str) -> int:
    numbers = inherited("numbers")
    assert isinstance(numbers, list)
    numbers.append(3)
    Path(path).write_text(str(numbers))
    inherited("nothing of the kind")
    return 0


def handler_of(number: int) -> int:
    return 0 if signal.getsignal(number) == signal.SIG_DFL else 1


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_what_a_server_has_imported_its_processes_need_not(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import os\nfrom pathlib import Path\nHERE = os.getpid()\n"
        "def tell(path):\n    Path(path).write_text(f'{HERE} {os.getpid()}')\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        server = ForkServer(modules=["slow"])
    finally:
        sys.path.remove(str(tmp_path))
    try:
        process = server.start(Call("teller", "slow:tell", {"path": str(tmp_path / "said")}))
        assert ended(process) == 0
        assert (tmp_path / "said").read_text() == f"{server.pid} {process.pid}"
    finally:
        server.close()


def test_a_module_that_cannot_be_imported_is_told_at_a_start() -> None:
    server = ForkServer(modules=["no_such_module"])
    try:
        with pytest.raises(MachineError, match=r"waiter cannot be started.*No module named 'no_such_module'"):
            server.start(Call("waiter", play("wait")))
    finally:
        server.close()


def test_processes_die_with_a_server_that_is_killed_and_say_so(server: ForkServer) -> None:
    processes = [server.start(Call(f"waiter {number}", play("wait"))) for number in range(2)]
    server._server.end()
    for process in processes:
        assert ended(process) == -signal.SIGKILL
        assert process.why() == "was killed with the fork server, which was killed by SIGKILL"
        process.end()
    wait_until(lambda: not any(is_running(process.pid) for process in processes))
    with pytest.raises(MachineError, match="the fork server has ended"):
        server.start(Call("waiter", play("wait")))


@pytest.mark.parametrize("kind", ["server", pytest.param("fork", marks=linux)])
def test_processes_end_with_the_one_that_started_them_also_those_that_stand_still(
    kind: str, tmp_path: Path
) -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER, kind, str(tmp_path / "pids")])
    try:
        wait_until((tmp_path / "pids").exists)
    finally:
        starter.kill()
        starter.wait()
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    wait_until(lambda: not any(is_running(pid) for pid in pids), "all have ended")


def test_a_server_that_stands_still_is_named_and_can_be_closed(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = server.start(Call("waiter", play("wait")))
    monkeypatch.setattr(fork_server, "START_SECONDS", 0.1)
    monkeypatch.setattr(fork_server, "END_SECONDS", 0.1)
    with stopped(server.pid):
        with pytest.raises(MachineError, match="waiter 2 cannot be started: the fork server does not answer"):
            server.start(Call("waiter 2", play("wait")))
        server.close()
        assert process.code() == -signal.SIGKILL and not is_running(process.pid)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc to count in")
def test_neither_descriptors_nor_numbers_are_left_of_processes(server: ForkServer) -> None:
    def left() -> tuple[int, int, int]:
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        return open_files(os.getpid()), open_files(server.pid), len(children)

    server.start(Call("first", play("end_with"), {"code": 0})).end()
    wait_until(lambda: left()[2] == 0)
    before = left()
    for number in range(20):
        process = server.start(Call(f"number {number}", play("end_with" if number % 2 else "wait"), {}))
        process.end()
    wait_until(lambda: left() == before, f"{left()} is {before}")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc to count in")
def test_a_process_has_no_descriptor_of_another(server: ForkServer) -> None:
    processes = [server.start(Call(f"waiter {number}", play("wait"))) for number in range(5)]
    # three, and where it tells what it raises
    wait_until(lambda: {open_files(process.pid) for process in processes} == {4}, "each has 4 descriptors")


@linux
def test_a_fork_finds_what_it_was_given_and_changes_nothing_here(tmp_path: Path) -> None:
    numbers = [1, 2]
    server = ForkServer.of_this_process({"numbers": numbers})
    try:
        numbers.append(99)  # later than the fork
        process = server.start(Call("user", f"{__name__}:use_inherited", {"path": str(tmp_path / "said")}))
        assert ended(process) == 2
        assert process.why().endswith(
            "has inherited no 'nothing of the kind' (only numbers); give it when the server is created"
        )
    finally:
        server.close()
    assert (tmp_path / "said").read_text() == "[1, 2, 3]" and numbers == [1, 2, 99]


def test_a_process_that_inherits_nothing_says_so() -> None:
    with pytest.raises(UserError, match=r"no 'module' \(only nothing\)"):
        inherited("module")


@linux
def test_a_fork_handles_signals_as_a_new_process_does() -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    server = ForkServer.of_this_process({})
    try:
        process = server.start(Call("asker", f"{__name__}:handler_of", {"number": signal.SIGTERM}))
        assert ended(process) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
        server.close()


@linux
def test_what_waits_to_be_printed_is_printed_once(tmp_path: Path) -> None:
    body = """
import sys
from cotswold.host import Call, ForkServer
sys.stdout.write("once")
server = ForkServer.of_this_process({})
server.start(Call("short", "sys:getrecursionlimit")).end()
server.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", body], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "once"


@linux
def test_a_program_with_threads_can_be_forked() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    server = ForkServer.of_this_process({})
    try:
        assert ended(server.start(Call("short", play("end_with"), {"code": 5}))) == 5
    finally:
        release.set()
        thread.join()
        server.close()


def test_a_start_is_told_of_the_processes_end_even_where_nobody_has_waited(server: ForkServer) -> None:
    process = server.start(Call("short", play("end_with"), {"code": 5}))
    assert select.select([process], [], [], 20)[0]
    server.close()  # before anybody has asked for its code
    assert process.code() == 5
