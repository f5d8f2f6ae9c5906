"""Signals to the parent of local ranks, and its death."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.launch.local_ranks import BEGIN, LIMIT_SECONDS, alive, state, state_of, until

PARENT = """
import sys
from io import StringIO
from pathlib import Path
from cotswold.launch import run_local
folder, program = sys.argv[1:]
words = [sys.executable, "-c", program]
sys.exit(run_local([folder], 2, Path(folder, "run", "logs"), cores=2, restarts=1, program=words))
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Yield a function that starts the parent of two ranks as a process."""
    parents: list[subprocess.Popen[str]] = []

    def start(body: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", PARENT, str(tmp_path), BEGIN + textwrap.dedent(body)]
        parents.append(subprocess.Popen(words, stderr=subprocess.PIPE, text=True))
        until(lambda: (tmp_path / "ready-0").exists() and (tmp_path / "ready-1").exists())
        return parents[-1]

    yield start
    for each in parents:
        each.kill()
        each.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_once_and_ranks_may_take_their_time(
    tmp_path: Path, parent: Callable[[str], subprocess.Popen[str]], number: signal.Signals
) -> None:
    body = f"""
    heard = []
    signal.signal({int(number)}, lambda number, _: heard.append(number))
    mark("ready")
    while not heard: time.sleep(0.01)
    time.sleep(0.3 * rank)
    (folder / f"heard-{{rank}}").write_text(str(heard))
    sys.exit({128 + number})
    """
    process = parent(body)
    process.send_signal(number)
    assert process.wait(LIMIT_SECONDS) == 128 + number
    assert [(tmp_path / f"heard-{rank}").read_text() for rank in range(2)] == [f"[{int(number)}]"] * 2


def test_a_signal_before_there_is_anything_to_save_ends_all_and_nothing_is_started_again(
    tmp_path: Path, parent: Callable[[str], subprocess.Popen[str]]
) -> None:
    body = """
    (folder / str(time.monotonic_ns())).touch()
    if rank == 1:  # waits for rank 0 where no signal is heard, and ends because that is gone
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        mark("ready")
        wait("gone-0")
        sys.exit(75)  # as who ends because of another
    try:
        mark("ready")
        time.sleep(60)
    except KeyboardInterrupt:
        mark("gone")
        sys.exit(130)
    """
    process = parent(body)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=LIMIT_SECONDS)[1] == ""
    assert process.returncode == 130
    assert len([path for path in tmp_path.iterdir() if path.name.isdigit()]) == 2


def test_a_second_signal_ends_all_at_once(
    tmp_path: Path, parent: Callable[[str], subprocess.Popen[str]]
) -> None:
    body = """
    signal.signal(signal.SIGINT, lambda number, _: mark("heard"))
    mark("ready")
    while True: time.sleep(60)
    """
    process = parent(body)
    process.send_signal(signal.SIGINT)
    until(lambda: (tmp_path / "heard-0").exists() and (tmp_path / "heard-1").exists())
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=LIMIT_SECONDS)[1] == "cotswold: left at once\n"
    assert process.returncode == 130
    assert not alive(tmp_path / "ready-0") and not alive(tmp_path / "ready-1")


def test_ranks_that_do_not_leave_when_told_to_twice_are_killed(
    tmp_path: Path, parent: Callable[[str], subprocess.Popen[str]]
) -> None:
    body = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, lambda number, _: mark("heard"))
    mark("ready")
    while True: time.sleep(60)
    """
    process = parent(body)
    process.send_signal(signal.SIGINT)
    until(lambda: (tmp_path / "heard-0").exists())
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=LIMIT_SECONDS)[1]
    assert said == "cotswold: left at once; progress since the last checkpoint is lost\n"
    assert process.returncode == 130
    assert not alive(tmp_path / "ready-0") and not alive(tmp_path / "ready-1")


def test_who_has_saved_before_a_second_signal_is_not_contradicted(
    tmp_path: Path, parent: Callable[[str], subprocess.Popen[str]]
) -> None:
    body = """
    def save(number, _):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if rank == 0: print("cotswold: stopped and saved", file=sys.stderr, flush=True)
        mark("saved")
    signal.signal(signal.SIGINT, save)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(143))
    mark("ready")
    while True: time.sleep(60)
    """
    process = parent(body)
    process.send_signal(signal.SIGINT)
    until(lambda: (tmp_path / "saved-0").exists() and (tmp_path / "saved-1").exists())
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=LIMIT_SECONDS)[1] == "cotswold: stopped and saved\n"
    assert process.returncode == 130


@pytest.mark.soak
def test_hanging_up_is_passed_on_as_a_wish_to_save(
    tmp_path: Path, parent: Callable[[str], subprocess.Popen[str]]
) -> None:
    body = """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(143))
    mark("ready")
    while True: time.sleep(60)
    """
    process = parent(body)
    process.send_signal(signal.SIGHUP)
    assert process.communicate(timeout=LIMIT_SECONDS)[1] == ""
    assert process.returncode == 128 + signal.SIGHUP


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_ctrl_z_suspends_all_ranks_until_the_parent_goes_on(
    tmp_path: Path, parent: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = parent("mark('ready'); wait('end')")
    ranks = [tmp_path / f"ready-{rank}" for rank in range(2)]
    process.send_signal(signal.SIGTSTP)
    until(lambda: [state(process.pid), *map(state_of, ranks)] == ["T", "T", "T"])
    process.send_signal(signal.SIGCONT)
    until(lambda: "T" not in {state(process.pid), *map(state_of, ranks)})
    (tmp_path / "end").touch()
    assert process.wait(LIMIT_SECONDS) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the heartbeat of a rank looks for its parent")
def test_nobody_is_left_when_the_parent_is_killed(
    tmp_path: Path, parent: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = parent("mark('ready'); time.sleep(60)")
    assert alive(tmp_path / "ready-1")
    process.kill()
    until(lambda: not alive(tmp_path / "ready-0") and not alive(tmp_path / "ready-1"))
