"""A prefetching thread delivers all items in order, and limits the waiting ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import count
from threading import Event

import pytest

from cotswold.data.loading.prefetch import Prefetcher

NUMBERS = 20_000


@contextmanager
def switching(seconds: float) -> Iterator[None]:
    """Set the interval of thread switches."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("most", [1, 2, 3, 8])
@pytest.mark.parametrize("seconds", [1e-6, 5e-3])
def test_all_come_in_order_however_often_threads_take_turns(most: int, seconds: float) -> None:
    numbers = (number for number in count())
    with switching(seconds):
        ahead = Prefetcher(numbers, most)
        try:
            assert [next(ahead) for _ in range(NUMBERS)] == [*range(NUMBERS)]
        finally:
            ahead.close()


@pytest.mark.parametrize("most", [1, 8])
def test_no_more_waits_than_may_and_half_is_made_again(most: int) -> None:
    made: list[int] = []

    def numbers() -> Generator[int, None, None]:
        for number in count():
            made.append(number)
            yield number

    def until(wanted: int) -> None:
        deadline = time.monotonic() + 20
        while len(made) < wanted:
            assert time.monotonic() < deadline, made
            Event().wait(0.001)
        Event().wait(0.02)
        assert len(made) == wanted

    ahead = Prefetcher(numbers(), most)
    try:
        until(most)
        for _ in range(most - most // 2 - 1):
            next(ahead)
        until(most)
        next(ahead)
        until(most + most - most // 2)
        assert len(ahead) == most
    finally:
        ahead.close()


def test_what_goes_wrong_comes_after_what_was_made() -> None:
    def numbers() -> Generator[int, None, None]:
        yield 1
        yield 2
        raise ValueError("no third one")

    ahead = Prefetcher(numbers(), 8)
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(ValueError, match="no third one"):
        next(ahead)
    with pytest.raises(StopIteration):
        next(ahead)
    ahead.close()


def test_it_ends_while_it_makes_and_while_it_waits_for_room() -> None:
    stopped, ended = Event(), Event()

    def waits() -> Generator[int, None, None]:
        try:
            stopped.wait(20)
            yield 1
        finally:
            ended.set()

    ahead = Prefetcher(waits(), 8, stopped.set)
    ahead.close()
    assert ended.is_set()
    full = Prefetcher((number for number in count()), 2)
    while len(full) < 2:
        Event().wait(0.001)
    began = time.monotonic()
    full.close()
    assert time.monotonic() - began < 5


def test_a_waiting_consumer_is_told_of_the_end() -> None:
    going = Event()

    def waits() -> Generator[int, None, None]:
        going.wait(20)
        yield 1

    inner = Prefetcher(waits(), 1)
    outer = Prefetcher((each for each in inner), 8, lambda: inner.close(wait=False))
    began = time.monotonic()
    outer.close()
    assert time.monotonic() - began < 5, "what it waits for is not waited for"
    with pytest.raises(StopIteration):
        next(outer)
    going.set()
