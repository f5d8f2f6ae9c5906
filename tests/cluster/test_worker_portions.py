"""What a worker's thread makes of portions: sums that stay open, are closed, stand alone, or are nodes."""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from tests.cluster.works import LeastSquares, Poisoned

from cotswold.cluster.roles.portions import Done, Event, NotDone, Portions, Returned, Rules
from cotswold.server.messages import Grant, Node

SIZE, PORTION = 7, 10


def patterns_of(portion: int) -> range:
    return range(portion * PORTION, (portion + 1) * PORTION)


def grant(number: int, portion: int, *, apart: bool = False) -> Grant:
    return Grant(1, 1, number, portion, apart)


@contextmanager
def portions_of(work: LeastSquares) -> Iterator[Portions]:
    portions = Portions(work)
    try:
        yield portions
    finally:
        portions.close()


def events(portions: Portions, count: int) -> list[Event]:
    found: list[Event] = []
    deadline = time.monotonic() + 20
    with selectors.DefaultSelector() as selector:
        selector.register(portions.fileno(), selectors.EVENT_READ)
        while len(found) < count:
            assert selector.select(deadline - time.monotonic()), f"{len(found)} of {count} events"
            found += portions.take()
    return found


def plain() -> LeastSquares:
    work = LeastSquares(200, SIZE, 0, torch.float64)
    work.parameters.fill_(0.5)
    return work


def gradient_of(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    total = torch.zeros(SIZE, dtype=torch.float64)
    for number in numbers:
        plain().add(patterns_of(number), total)
    return total.numpy()


def test_portions_are_one_sum_until_it_is_full() -> None:
    with portions_of(plain()) as portions:
        portions.begin(1, True, Rules(False, 2, patterns_of))
        for number in (1, 2, 3):
            portions.grant(grant(number, number + 4))
        done = events(portions, 3)
        assert [each.held.result.portion for each in done if isinstance(each, Done)] == [5, 6, 7]
        (closed,) = portions.closed()
        assert [one.portion for one in closed.results] == [5, 6]
        assert closed.gradient is not None
        np.testing.assert_allclose(closed.gradient, gradient_of(5, 6), rtol=1e-14)
        portions.flush()
        assert [[one.portion for one in each.results] for each in portions.closed()] == [[5, 6], [7]]


def test_what_is_apart_is_a_sum_of_its_own() -> None:
    with portions_of(plain()) as portions:
        portions.begin(1, True, Rules(False, 0, patterns_of))
        for each in (grant(1, 0), grant(2, 1, apart=True), grant(3, 2)):
            portions.grant(each)
        events(portions, 3)
        portions.flush()
        assert sorted([one.portion for one in each.results] for each in portions.closed()) == [[0, 2], [1]]


def test_nodes_are_merged_as_far_as_halves_are_here() -> None:
    with portions_of(plain()) as portions:
        portions.begin(1, True, Rules(True, 4, patterns_of))
        for number, portion in enumerate((4, 5, 6, 7, 9), 1):
            portions.grant(grant(number, portion))
        events(portions, 5)
        (whole,) = portions.closed()
        assert whole.node == Node(2, 1)
        assert [one.portion for one in whole.results] == [4, 5, 6, 7]
        left, right = gradient_of(4) + gradient_of(5), gradient_of(6) + gradient_of(7)
        assert whole.gradient is not None
        assert whole.gradient.tobytes() == (left + right).tobytes()
        portions.flush()
        assert {each.node for each in portions.closed()} == {Node(2, 1), Node(0, 9)}


def test_a_portion_that_fails_leaves_the_sum_as_it_was() -> None:
    work = Poisoned(200, SIZE, 0, torch.float64, bad=15, nan=False)
    work.parameters.fill_(0.5)
    with portions_of(work) as portions:
        portions.begin(1, True, Rules(False, 0, patterns_of))
        for number, portion in enumerate((0, 1, 2), 1):
            portions.grant(grant(number, portion))
        found = events(portions, 3)
        (failed,) = (each for each in found if isinstance(each, NotDone))
        assert failed.portion == 1 and "pattern 15" in failed.error
        portions.flush()
        (whole,) = portions.closed()
        assert whole.gradient is not None
        np.testing.assert_allclose(whole.gradient, gradient_of(0, 2), rtol=1e-14)


def test_what_was_begun_before_counts_for_nothing() -> None:
    with portions_of(LeastSquares(200, SIZE, 0, torch.float64)) as portions:
        portions.begin(1, True, Rules(False, 0, patterns_of))
        portions.grant(grant(1, 0))
        portions.begin(2, True, Rules(False, 0, patterns_of))
        returned: list[object] = []
        portions.call(lambda: "between", returned.append)
        portions.grant(grant(2, 1))
        last = None
        while not (isinstance(last, Done) and last.held.grant == 2):
            for last in events(portions, 1):
                if isinstance(last, Returned):
                    last.then(last.value)
        assert returned == ["between"]
        portions.flush()
        assert [[one.portion for one in each.results] for each in portions.closed()] == [[1]]


def test_a_value_alone_needs_no_gradient() -> None:
    with portions_of(plain()) as portions:
        portions.begin(1, False, Rules(False, 0, patterns_of))
        portions.grant(grant(1, 3))
        (done,) = events(portions, 1)
        assert isinstance(done, Done)
        assert done.held.result.value == plain().add(patterns_of(3), None).value
        assert done.held.result.details == (("right", done.held.result.details[0][1]),)
