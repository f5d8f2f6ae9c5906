"""Pipes that wake a thread, and waiting for descriptors."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator

import pytest

from cotswold.host import is_readable, wake_pipe

_HIGH = 1500


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = wake_pipe()
    yield ends
    for each in ends:
        os.close(each)


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2 * _HIGH), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_no_end_of_a_wake_pipe_blocks_or_is_inherited(pipe: tuple[int, int]) -> None:
    assert (
        [os.get_blocking(each) for each in pipe] == [os.get_inheritable(each) for each in pipe] == [False] * 2
    )


@pytest.mark.usefixtures("many_descriptors")
def test_a_descriptor_above_1024_is_waited_for(pipe: tuple[int, int]) -> None:
    high = fcntl.fcntl(pipe[0], fcntl.F_DUPFD_CLOEXEC, _HIGH)
    try:
        assert not is_readable(high, 0.0)
        os.write(pipe[1], b"!")
        assert is_readable(high, 10.0)
    finally:
        os.close(high)
