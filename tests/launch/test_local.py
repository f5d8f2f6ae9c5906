"""The parent of local ranks: signals, deaths, restarts, logs. The ranks are small programs without torch."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import pytest
from tests.launch import worker

from cotswold.errors import UserError
from cotswold.host.token import VARIABLE, Token
from cotswold.launch import crew, run_local

LIMIT_SECONDS = 30.0
BEGIN = """
import os, pathlib, signal, sys, time
rank, folder = int(os.environ["COTSWOLD_RANK"]), pathlib.Path(sys.argv[1])
def mark(name): (folder / f"{name}-{rank}").write_text(str(os.getpid()))
def wait(name):
    while not (folder / name).exists(): time.sleep(0.01)
"""
PARENT = """
import sys
from io import StringIO
from pathlib import Path
from cotswold.launch import run_local
folder, program = sys.argv[1:]
words = [sys.executable, "-c", program]
sys.exit(run_local([folder], 2, Path(folder, "run", "logs"), cores=2, restarts=1, program=words))
"""
TRAINING_PARENT = """
import sys
from pathlib import Path
from cotswold.launch import run_local
folder, worker, *words = sys.argv[1:]
words += ["--folder", folder]
sys.exit(run_local(words, 2, Path(folder, "run", "logs"), cores=2, program=[sys.executable, worker]))
"""


def program(body: str) -> list[str]:
    return [sys.executable, "-c", BEGIN + textwrap.dedent(body)]


def run(folder: Path, body: str, ranks: int = 2, restarts: int = 0) -> int:
    return run_local(
        [str(folder)],
        ranks,
        folder / "run" / "logs",
        cores=4,
        restarts=restarts,
        restart_words=[str(folder), "again"],
        program=program(body),
    )


@pytest.fixture
def grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "_GRACE_SECONDS", 0.2)
    monkeypatch.setattr(crew, "_TELL_SECONDS", 0.1)
    monkeypatch.setattr(crew, "_TERM_SECONDS", 0.3)


def test_ranks_are_told_their_place_their_threads_and_their_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    body = """
    names = ("RANKS", "LOCAL_RANK", "LOCAL_RANKS", "PARENT")
    told = [os.environ["COTSWOLD_" + name] for name in names] + [os.environ["OMP_NUM_THREADS"]]
    (folder / str(rank)).write_text(" ".join(told))
    """
    assert run(tmp_path, body) == 0
    assert (tmp_path / "1").read_text() == f"2 1 2 {os.getpid()} 2"


def test_rank_0_has_the_terminal_and_the_others_a_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
    print("hello from", rank)
    if rank == 0:
        (folder / "run").mkdir()
        (folder / "run" / "recipe.toml").touch()
    """
    assert run(tmp_path, body) == 0
    assert capfd.readouterr().out == "hello from 0\n"
    begin, said, end = (tmp_path / "run" / "logs" / "rank-1.log").read_text().splitlines()
    assert "rank 1 of 2" in begin and said == "hello from 1" and end.endswith("ended with exit code 0")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_rank_0_says_is_found_in_its_log_as_well(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
    from cotswold.api.progress import say
    say("the data\\nare gone")
    (folder / "run").mkdir(exist_ok=True)
    (folder / "run" / "recipe.toml").touch()
    """
    assert run(tmp_path, body) == 0
    assert capfd.readouterr().err == "cotswold: the data are gone\n"
    for rank in range(2):
        _, said, _ = (tmp_path / "run" / "logs" / f"rank-{rank}.log").read_text().splitlines()
        assert said == "cotswold: the data are gone"


def test_a_traceback_of_rank_0_is_found_in_its_log_as_well(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
    from cotswold.cli.main import main
    (folder / "run").mkdir()
    (folder / "run" / "recipe.toml").touch()
    main(["recipe", "show", "nothing", "--debug"])
    """
    assert run(tmp_path, body, ranks=1) == 1
    shown = capfd.readouterr().err
    kept = (tmp_path / "run" / "logs" / "rank-0.log").read_text()
    assert "Traceback" in kept and kept.splitlines()[-2] == shown.splitlines()[-1]


def test_another_process_under_the_same_number_of_a_file_writes_to_no_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
    import subprocess
    file = int(os.environ["COTSWOLD_LOG"].split()[0])
    os.dup2(os.open(folder / "other", os.O_WRONLY | os.O_CREAT), file)
    words = [sys.executable, "-c", "from cotswold.api.progress import say; say('hello')"]
    subprocess.run(words, pass_fds=[file], check=True)
    """
    assert run(tmp_path, body, ranks=1) == 0
    assert (tmp_path / "other").read_text() == ""
    assert capfd.readouterr().err == "cotswold: hello\n"


def test_a_run_that_is_resumed_appends_to_its_logs(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").touch()
    for _ in range(2):
        assert run(tmp_path, "print('hello')") == 0
    assert (tmp_path / "run" / "logs" / "rank-1.log").read_text().splitlines()[1::3] == ["hello", "hello"]


def test_where_no_run_came_to_be_no_logs_are_left(tmp_path: Path) -> None:
    assert run(tmp_path, "sys.exit(2)") == 2
    assert list(tmp_path.iterdir()) == []


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
def test_what_the_kernel_killed_for_want_of_memory_is_called_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([7, 8])
    monkeypatch.setattr(crew, "_oom_kills", lambda: next(counts))
    assert run(tmp_path, "os.kill(os.getpid(), signal.SIGKILL) if rank else time.sleep(60)") == 1
    assert "rank 1 was killed by SIGKILL, by the kernel, for want of memory" in capfd.readouterr().err


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
    assert "rank 1 ended with exit code 3" in said and "rank 0 did not end and was killed" in said
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
    sys.exit("cotswold: rank 0 on a has not been heard of; stopping (the last checkpoint is whole)")
    """
    assert run(tmp_path, body) == 1
    said = capfd.readouterr().err
    assert said == "cotswold: rank 0 stands still, stopped by a signal, and was killed\n"


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
    assert capfd.readouterr().err.endswith("cotswold: starting all ranks again, 1 of 2\n")


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


def test_what_rank_0_says_of_a_users_mistake_is_not_said_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "print('cotswold: no such recipe', file=sys.stderr); sys.exit(2)") == 2
    assert capfd.readouterr().err == "cotswold: no such recipe\n"


def test_a_program_that_cannot_be_started_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="2 ranks cannot be started here"):
        run_local([], 2, tmp_path / "run" / "logs", cores=1, program=[str(tmp_path / "nothing")])


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts the parent of two ranks as a process."""
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
        sys.exit("cotswold: rank 0 on a is gone; stopping (the last checkpoint is whole)")
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
    assert said == "cotswold: left at once; nothing since the last checkpoint is kept\n"
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


@pytest.mark.usefixtures("grace")
def test_a_terminal_that_is_gone_does_not_keep_the_parent_from_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", Gone())
    body = "sys.exit('the first time fails') if rank and sys.argv[2:] != ['again'] else None"
    assert run(tmp_path, body, restarts=1) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the pulse of a rank looks for its parent")
def test_nobody_is_left_when_the_parent_is_killed(
    tmp_path: Path, parent: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = parent("mark('ready'); time.sleep(60)")
    assert alive(tmp_path / "ready-1")
    process.kill()
    until(lambda: not alive(tmp_path / "ready-0") and not alive(tmp_path / "ready-1"))


@pytest.mark.slow
def test_ranks_that_train_go_on_after_one_was_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = run_local(
        ["--on", "1", "kill"],
        2,
        tmp_path / "run" / "logs",
        cores=2,
        restarts=1,
        restart_words=["--steps", "5"],
        program=[sys.executable, worker.__file__],
    )
    output = capfd.readouterr()
    assert code == 0 and output.out == "rank 0 has finished\n"
    assert "rank 1 was killed by SIGKILL" in output.err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_ranks_outlive_a_suspension_longer_than_their_patience(
    tmp_path: Path, training_parent: Callable[..., subprocess.Popen[str]]
) -> None:
    process = training_parent("--patience", "6")
    ranks = children(process.pid)
    process.send_signal(signal.SIGTSTP)
    until(lambda: {state(pid) for pid in (process.pid, *ranks)} == {"T"})
    time.sleep(7)  # the suspension itself: longer than the patience
    process.send_signal(signal.SIGCONT)
    steps = newest_steps(tmp_path)
    until(lambda: all(now > steps[rank] + 20 for rank, now in newest_steps(tmp_path).items()))
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=LIMIT_SECONDS)[1] == ""
    assert process.returncode == 130


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_under_a_parent_that_stands_still_no_rank_is_left_behind(
    tmp_path: Path, training_parent: Callable[..., subprocess.Popen[str]]
) -> None:
    process = training_parent("--patience", "4")
    ranks = children(process.pid)
    process.send_signal(signal.SIGSTOP)
    until(lambda: state(process.pid) == "T")
    os.kill(ranks[1], signal.SIGSTOP)
    until(lambda: {state(pid) for pid in ranks} == {"Z"})
    process.send_signal(signal.SIGCONT)
    said = process.communicate(timeout=LIMIT_SECONDS)[1]
    assert process.returncode == 1
    assert "rank 1 on " in said and "has not been heard of for 4 s" in said


@pytest.mark.slow
def test_torchrun_starts_ranks_too(tmp_path: Path) -> None:
    torchrun = Path(sys.executable).with_name("torchrun")
    words = ["--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", worker.__file__]
    done = subprocess.run(
        [torchrun, *words, "--on", "1", "raise"],
        env={**os.environ, VARIABLE: Token.new().text},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "failed: ValueError: the third step is too hard; stopping" in done.stderr


@pytest.fixture
def training_parent(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the parent of two ranks that exchange in a loop, and leave in ``tmp_path`` how far they are."""
    parents: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", TRAINING_PARENT, str(tmp_path), worker.__file__, *words]
        parents.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        until(lambda: len(newest_steps(tmp_path)) == 2)
        return parents[-1]

    yield start
    for each in parents:
        for rank in children(each.pid):
            os.kill(rank, signal.SIGKILL)
        each.kill()
        each.communicate()


def newest_steps(folder: Path) -> dict[str, int]:
    """The newest step of each rank that `worker` has noted, by the name of its file."""
    return {each.name: int(each.read_text() or "0") for each in folder.glob("[01]-*")}


def children(pid: int) -> list[int]:
    """The processes that a process has started, in their order."""
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


class Gone(StringIO):
    """A terminal that was closed."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def alive(mark: Path) -> bool:
    """Whether the process that left this mark runs."""
    return state_of(mark) not in {"", "Z"}


def state_of(mark: Path) -> str:
    """The state of the process that left this mark: R, S, T ...; "" where there is none."""
    return state(int(mark.read_text()))


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
