"""A directory has one writer; a second one is told the holder."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
from pathlib import Path

import pytest

from cotswold.errors import BusyError, DiskFullError, MachineError
from cotswold.files import DirectoryLock, holder_of, lock
from cotswold.host import Call, ForkServer


def refusal(folder: Path) -> str:
    with pytest.raises(BusyError) as caught, DirectoryLock(folder):
        pass
    return str(caught.value)


def test_whoever_comes_second_hears_which_process_on_which_host_since_when_and_how_to_stop_it(
    tmp_path: Path,
) -> None:
    with DirectoryLock(tmp_path):
        said = refusal(tmp_path)
    process, host = os.getpid(), platform.node()
    assert f"{tmp_path} is in use by process {process} on {host} since 20" in said
    assert f"wait for it, stop it (kill {process}), or choose another directory" in said


def test_it_is_said_what_is_in_a_directory_that_is_no_place_for_another(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path):
        assert refusal(tmp_path).startswith("two runs in one directory: ")
    with DirectoryLock(tmp_path, "host of parameter servers"):
        said = refusal(tmp_path)
    assert said.startswith(
        f"no directory for a run, but that of a host of parameter servers: {tmp_path} is in use"
    )


def test_a_holder_on_another_host_is_to_be_stopped_there(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path):
        (tmp_path / "lock").write_text(json.dumps({"process": 7, "host": "far\naway", "since": 1.7e9 // 1}))
        assert "an unknown process" in refusal(tmp_path)  # since is no whole number
        (tmp_path / "lock").write_text(json.dumps({"process": 7, "host": "far", "since": 1_700_000_000}))
        assert "stop it (kill 7 on far), or choose" in refusal(tmp_path)
        (tmp_path / "lock").write_text(json.dumps({"process": 7, "host": "a\n\x1b[2Jb", "since": 1}))
        assert r"on 'a\n\x1b[2Jb' since 19" in refusal(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "123", "[]", "[" * 4000, "{}", '{"process":1,"host":"x","since":' + "9" * 400 + "}", "\xff"]
)
def test_a_lock_that_does_not_say_whose_it_is_is_still_a_lock(tmp_path: Path, text: str) -> None:
    with DirectoryLock(tmp_path):
        (tmp_path / "lock").write_text(text)
        assert "is in use by an unknown process; wait for it, stop it," in refusal(tmp_path)
    with DirectoryLock(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["process"] == os.getpid()


def test_a_lock_that_is_a_link_is_refused_and_what_it_points_to_is_left_alone(tmp_path: Path) -> None:
    keys = tmp_path / "authorized_keys"
    keys.write_text("ssh-ed25519 AAAA")
    run = tmp_path / "run"
    run.mkdir()
    (run / "lock").symlink_to(keys)
    with (
        pytest.raises(MachineError, match="lock cannot be opened: it is a symbolic link"),
        DirectoryLock(run),
    ):
        pass
    assert keys.read_text() == "ssh-ed25519 AAAA"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_directory_that_may_not_be_written_is_answered_with_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(lock, "open_file", refuse)
    with (
        pytest.raises(MachineError, match=f"get write permission for {tmp_path}, or copy it to continue"),
        DirectoryLock(tmp_path),
    ):
        pass


def test_a_full_disk_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lock, "write_all", full)
    with (
        pytest.raises(DiskFullError, match="no room left to lock"),
        DirectoryLock(tmp_path),
    ):
        pass


def test_a_fork_of_the_holder_that_lives_longer_holds_nothing(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path):
        server = ForkServer.of_this_process({})
        server.start(Call("a fork", "os:getpid"))  # it has come as far as to fork others
    try:
        with DirectoryLock(tmp_path):
            assert "is in use" in refusal(tmp_path)
    finally:
        server.close()


def test_whoever_asks_who_holds_a_lock_makes_nobodys_attempt_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lock").touch()
    asking = os.open(tmp_path / "lock", os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)  # as `holder_of` has it for a moment
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        fcntl.flock(asking, fcntl.LOCK_UN)

    monkeypatch.setattr("cotswold.files.lock.time.sleep", sleep)
    with DirectoryLock(tmp_path):
        assert len(waited) == 1 and holder_of(tmp_path) is not None
    os.close(asking)


def test_who_holds_a_lock_can_be_asked_without_taking_it(tmp_path: Path) -> None:
    assert holder_of(tmp_path) is None
    with DirectoryLock(tmp_path):
        found = holder_of(tmp_path)
        assert found is not None and found.process == os.getpid() and found.is_here
    assert holder_of(tmp_path) is None, "what the file says is of the past"
    with DirectoryLock(tmp_path):
        pass
