"""Local ranks that die, hang or fail: error messages, stopped ranks, restarts."""

from __future__ import annotations

import errno
import os
import sys
from io import StringIO
from pathlib import Path

import pytest
from tests.support.launch.local_ranks import alive, run, until

from cotswold.errors import ANOTHER_RANK_EXIT
from cotswold.launch import rank_group


@pytest.fixture
def grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_group, "_GRACE_SECONDS", 0.2)
    monkeypatch.setattr(rank_group, "_REPORT_DELAY_SECONDS", 0.1)
    monkeypatch.setattr(rank_group, "_TERM_SECONDS", 0.3)


@pytest.mark.usefixtures("grace")
def test_a_rank_that_was_killed_is_named_with_its_last_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
    if rank == 1:
        print("the last line", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
    """
    assert run(tmp_path, body) == 1
    said = capfd.readouterr().err
    assert "cotswold: rank 1 was killed by SIGKILL" in said
    assert "  the last line\n" in said


@pytest.mark.usefixtures("grace")
def test_who_ends_because_of_another_is_not_named_whatever_it_says_and_who_fails_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = f"""
    if rank == 1:
        print("cotswold: rank 2 on a failed", flush=True)
        mark("left")
        sys.exit({ANOTHER_RANK_EXIT})
    wait("left-1")
    if rank == 2:
        sys.exit("cotswold: rank 0 on a is gone; stopping (the last checkpoint is whole)")
    sys.exit({ANOTHER_RANK_EXIT})
    """
    assert run(tmp_path, body, ranks=3) == 1
    said = capfd.readouterr().err
    assert "rank 2 ended with exit code 1" in said and "rank 1" not in said


@pytest.mark.usefixtures("grace")
def test_what_the_kernel_killed_for_want_of_memory_is_called_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([7, 8])
    monkeypatch.setattr(rank_group, "_oom_kills", lambda: next(counts))
    assert run(tmp_path, "os.kill(os.getpid(), signal.SIGKILL) if rank else time.sleep(60)") == 1
    assert "rank 1 was killed by SIGKILL, by the kernel: out of memory" in capfd.readouterr().err


@pytest.mark.usefixtures("grace")
def test_a_rank_that_does_not_end_when_another_has_died_is_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mark("deaf")
    if rank == 1:
        wait("deaf-0")
        sys.exit(3)
    time.sleep(60)
    """
    assert run(tmp_path, body) == 1
    said = capfd.readouterr().err
    assert "rank 1 ended with exit code 3" in said and "rank 0 did not end; killed it" in said
    assert not alive(tmp_path / "deaf-0")


@pytest.mark.usefixtures("grace")
def test_a_rank_that_is_stopped_when_another_has_died_is_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
    if rank == 0:
        mark("stops")
        os.kill(os.getpid(), signal.SIGSTOP)
    wait("stops-0")
    sys.exit(75)  # as who ends because of another
    """
    assert run(tmp_path, body) == 1
    said = capfd.readouterr().err
    assert said == "cotswold: rank 0 was stopped by a signal; killed it\n"


@pytest.mark.usefixtures("grace")
def test_what_a_dead_rank_had_started_ends_with_it(tmp_path: Path) -> None:
    body = """
    if os.fork() == 0:
        mark("child")
        time.sleep(60)
    wait(f"child-{rank}")
    os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run(tmp_path, body) == 1
    until(lambda: not alive(tmp_path / "child-0") and not alive(tmp_path / "child-1"))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.usefixtures("grace")
def test_no_group_gets_a_signal_once_its_number_may_be_a_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[str] = []
    to_group = os.killpg

    def killpg(leader: int, number: int) -> None:
        states.append(Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()[0])
        to_group(leader, number)

    monkeypatch.setattr(os, "killpg", killpg)
    body = """
    if rank == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        mark("deaf")
        time.sleep(60)
    wait("deaf-0")
    sys.exit(3)
    """
    assert run(tmp_path, body) == 1
    assert sorted(states) == ["S", "Z"]  # one that lives, one whose number we still hold


@pytest.mark.usefixtures("grace")
def test_ranks_are_started_again_with_the_words_of_resumption(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
    if sys.argv[2:] != ["again"]:
        sys.exit("the first time fails") if rank else time.sleep(60)
    """
    assert run(tmp_path, body, restarts=2) == 0
    assert capfd.readouterr().err.endswith("cotswold: restarting all ranks (1 of 2)\n")


@pytest.mark.usefixtures("grace")
def test_ranks_are_not_started_again_more_often_than_said(tmp_path: Path) -> None:
    body = "(folder / str(time.monotonic_ns())).touch(); sys.exit(1)"
    assert run(tmp_path, body, ranks=1, restarts=2) == 1
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.usefixtures("grace")
def test_a_users_mistake_is_not_tried_again(tmp_path: Path) -> None:
    body = "(folder / str(time.monotonic_ns())).touch(); sys.exit(2)"
    assert run(tmp_path, body, ranks=1, restarts=2) == 2
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.usefixtures("grace")
def test_a_terminal_that_is_gone_does_not_keep_the_parent_from_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", Gone())
    body = "sys.exit('the first time fails') if rank and sys.argv[2:] != ['again'] else None"
    assert run(tmp_path, body, restarts=1) == 0


class Gone(StringIO):
    """A closed terminal."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
