"""Logs of ranks while their parent watches them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cotswold.launch.logs import Logs


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    """Yield the logs of an existing run, with a line of rank 1."""
    (tmp_path / "recipe.toml").touch()
    with Logs(tmp_path / "logs") as kept:
        kept.log_start(1, "rank 1 of 2")
        with kept.path(1).open("a") as file:
            file.write("its own words\n")
        return kept


def test_the_last_words_are_those_since_the_start(logs: Logs) -> None:
    logs.log_end(1, "ended with exit code 1")
    assert logs.tail(1) == ["its own words"]
    logs.log_start(1, "rank 1 of 2")
    assert logs.tail(1) == []


def test_a_log_that_was_taken_away_has_no_last_words_and_ends_no_rank(logs: Logs) -> None:
    logs.path(1).unlink()
    assert logs.tail(1) == []
    logs.path(1).parent.rmdir()
    logs.log_end(1, "ended with exit code 1")
    assert logs.tail(1) == []


def test_a_log_that_is_a_link_or_a_pipe_is_neither_read_nor_waited_for(logs: Logs, tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("years of work\n")
    logs.path(1).unlink()
    logs.path(1).symlink_to(tmp_path / "thesis")
    logs.log_end(1, "ended with exit code 1")
    assert logs.tail(1) == [] and (tmp_path / "thesis").read_text() == "years of work\n"
    logs.path(1).unlink()
    os.mkfifo(logs.path(1))
    assert logs.tail(1) == []


def test_a_full_disk_does_not_end_the_ranks_that_are_left(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    logs.log_end(1, "ended with exit code 1")
