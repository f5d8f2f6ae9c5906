"""Identities of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cotswold.host import process_info as process_module
from cotswold.host.hang_detection import ProcessActivity
from cotswold.host.process_info import (
    await_descendants,
    descendant_activity,
    is_stopped,
    kill_by_identity,
    process_identity,
    process_tree,
    thread_activity,
    usage_reader,
)
from cotswold.testing.signals import wait_until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc"),
    pytest.mark.usefixtures("template"),  # it is a child, and computes when it starts
]
PRINT = (
    "from cotswold.host.process_info import process_identity; import time; "
    "print(process_identity(), flush=True); time.sleep(60)"
)


def test_a_process_is_ended_by_its_identity_also_when_it_is_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", PRINT], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        who = process.stdout.readline().strip()
        process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 10
        while not is_stopped(process.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        kill_by_identity(who)
        assert process.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize(("seconds", "has_ended"), [(30.0, True), (0.2, False)])
def test_the_descendants_of_a_killed_process_are_awaited_but_not_for_ever(
    seconds: float, has_ended: bool
) -> None:
    linger = "read -r word; sleep 1; echo ended"
    script = f"import subprocess; subprocess.run(['sh', '-c', {linger!r}])"
    reader, writer = os.pipe()
    with subprocess.Popen([sys.executable, "-c", script], stdin=reader, stdout=subprocess.PIPE) as process:
        os.close(reader)
        wait_until(lambda: len(process_tree(process.pid)) == 2)
        with await_descendants(process.pid, seconds):
            process.kill()
            os.close(writer)
            process.wait()
            began = time.monotonic()
        assert process.stdout is not None
        assert (time.monotonic() - began > 0.9) == has_ended
        os.set_blocking(process.stdout.fileno(), False)
        assert process.stdout.read() == (b"ended\n" if has_ended else None)


def test_a_process_that_has_the_number_of_another_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", PRINT], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        host, pid, started = process.stdout.readline().split()
        kill_by_identity(f"{host} {pid} {int(started) + 1}")
        kill_by_identity(f"another-{host} {pid} {started}")
        kill_by_identity("")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        process.kill()


def test_what_a_thread_its_processes_and_the_disk_do_is_effort_and_waiting_is_none(tmp_path: Path) -> None:
    usage = usage_reader(threading.get_ident())
    before = usage()
    time.sleep(0.2)  # what is measured
    rested = usage()
    assert rested.core_seconds - before.core_seconds < 0.1 and rested.blocks == before.blocks
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    if not on_memory(tmp_path):
        assert usage().blocks > rested.blocks
    computing = "print(sum(range(5_000_000)), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", computing], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert usage().core_seconds - rested.core_seconds > 0.03
        process.communicate(b"\n")


@pytest.mark.parametrize("listing", ["children", "no such file"])
def test_what_is_seen_of_processes_that_were_started_is_their_state_and_time(
    listing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_CHILDREN", listing)  # some kernels leave it out
    computing = "print(sum(range(5_000_000)), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", computing], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert descendant_activity()[process.pid].core_seconds > 0.03
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: descendant_activity()[process.pid].state == "T")
        process.send_signal(signal.SIGCONT)
        process.communicate(b"\n")
    assert process.pid not in descendant_activity()


@pytest.mark.parametrize("listing", ["children", "no such file"])
def test_a_family_is_known_also_where_the_system_lists_no_children(
    listing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "_CHILDREN", listing)
    script = "sleep 60 & echo $!; wait"
    with subprocess.Popen(
        ["sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        found = process_tree(os.getpid())
        os.killpg(process.pid, signal.SIGKILL)
    assert found[0] == os.getpid() and {process.pid, grandchild} < set(found)
    assert found.index(process.pid) < found.index(grandchild)


def test_what_is_seen_of_other_threads_is_what_they_compute_and_not_what_the_asking_one_does() -> None:
    asked, done, over = threading.Event(), threading.Event(), threading.Event()

    def compute() -> None:
        asked.wait()
        sum(range(5_000_000))
        done.set()
        over.wait()

    thread = threading.Thread(target=compute)
    thread.start()
    number = thread.native_id or 0

    def seen() -> ProcessActivity:
        found = thread_activity(number)
        assert found is not None
        return found

    wait_until(lambda: seen().state == "S")
    before = seen().core_seconds
    sum(range(5_000_000))
    own = seen().core_seconds
    asked.set()
    assert done.wait(60)
    after = seen().core_seconds
    over.set()
    thread.join()
    assert own - before < 0.02 and after - own > 0.03
    assert thread_activity(0) is None, "there is no such thread"


def on_memory(folder: Path) -> bool:
    """True if a folder is on a file system without a disk, whose blocks are not counted."""
    return subprocess.check_output(["stat", "-f", "-c", "%T", folder], text=True).strip() in {
        "tmpfs",
        "overlayfs",
    }


def test_a_process_that_runs_is_not_stopped() -> None:
    assert process_identity().split()[1] == str(os.getpid()) and not is_stopped(os.getpid())


def test_nobody_is_known_or_killed_where_a_sandbox_hides_the_hosts_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = process_identity()
    monkeypatch.setattr(process_module, "_BOOT", tmp_path / "boot_id")
    assert process_identity() == ""
    kill_by_identity(own)  # or this test would not end
