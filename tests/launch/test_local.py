"""Ranks that a parent starts on this host: their place, their arguments, their logs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.launch.local_ranks import run

from cotswold.errors import UserError
from cotswold.launch import run_local


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
    from cotswold.ui.terminal import write_message
    write_message("the data\\nare gone")
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
    words = [sys.executable, "-c", "from cotswold.ui.terminal import write_message; write_message('hello')"]
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


def test_what_rank_0_says_of_a_users_mistake_is_not_said_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "print('cotswold: no such recipe', file=sys.stderr); sys.exit(2)") == 2
    assert capfd.readouterr().err == "cotswold: no such recipe\n"


def test_a_program_that_cannot_be_started_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot start 2 ranks on this host"):
        run_local([], 2, tmp_path / "run" / "logs", cores=1, program=[str(tmp_path / "nothing")])
