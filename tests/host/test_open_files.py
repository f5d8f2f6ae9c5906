"""A process raises its limit of open files, and reports early that the limit is too low."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cotswold.errors import MachineError
from cotswold.host.fork_server_loop import LENGTH, NO_FILES, ForkServerLoop
from cotswold.host.open_files import can_open, raise_descriptor_limit, require_descriptors


@contextmanager
def soft_limit(count: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_rises_to_the_hard_one() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with soft_limit(64):
        require_descriptors(100)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 1 << 16), hard)


def test_there_is_room_for_as_many_files_as_can_be_opened() -> None:
    highest, opened = max(int(each.name) for each in Path("/dev/fd").iterdir()), [0]
    while opened[-1] <= highest:  # so no number below the last is free
        opened.append(os.open(os.devnull, os.O_RDONLY))
    with soft_limit(opened[-1] + 4):
        assert can_open(3) and not can_open(4)
        assert can_open(3), "whatever was tried is closed"
    for each in opened[1:]:
        os.close(each)


def test_too_few_open_files_are_told_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotswold.host.open_files.raise_descriptor_limit", lambda: 100)
    monkeypatch.setattr("cotswold.host.open_files.can_open", lambda count: count <= 60)
    require_descriptors(7)
    with pytest.raises(MachineError, match=r"14 processes need 102 .* may have 100 \(ulimit -n\).* fewer"):
        require_descriptors(14)


def test_a_limit_that_cannot_rise_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    assert raise_descriptor_limit() == 256


@pytest.mark.parametrize("count", [0, 1])
def test_a_fork_server_without_numbers_for_the_files_of_a_start_says_so_and_goes_on(count: int) -> None:
    ours, theirs = socket.socketpair()
    status, told = os.pipe()
    with ours, theirs:
        loop = ForkServerLoop(theirs, lambda: None)
        socket.send_fds(ours, [LENGTH.pack(2)], [told] * count)  # the system drops the others
        ours.sendall(b"{}")
        assert loop._serve_request()
        os.close(told)
        expected = b'{"error": "' + NO_FILES.encode() + b'"}\n' if count else b""
        assert os.read(status, 4096) == expected
        assert os.read(status, 4096) == b"", "nobody keeps a copy of the descriptor"
        for each in (loop._woken, loop._wake, loop._selector):
            each.close()
    os.close(status)
