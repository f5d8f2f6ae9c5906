"""The ledger of samples: every place is known, beside sets of whole numbers."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotswold.server.messages import Ranges
from cotswold.server.ranges import are_apart, common, joined, size, without
from cotswold.server.samples import Account, Samples

_RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6)


def places(ranges: Ranges) -> set[int]:
    return {place for start, stop in ranges for place in range(start, stop)}


@given(_RANGES, _RANGES)
def test_ranges_are_sets_of_places(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    one, other = joined(left), joined(right)
    assert places(one) == places(tuple(left))
    for found, expected in (
        (joined(one, other), places(one) | places(other)),
        (common(one, other), places(one) & places(other)),
        (without(one, other), places(one) - places(other)),
    ):
        assert places(found) == expected and size(found) == len(expected)
        assert all(start < stop for start, stop in found)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(found))
    assert are_apart(joined(left))


@pytest.mark.parametrize("ranges", [((1, 1),), ((2, 1),), ((0, 2), (2, 3)), ((4, 5), (0, 1)), ((-1, 1),)])
def test_ranges_that_are_not_ascending_and_apart_are_seen(ranges: Ranges) -> None:
    assert not are_apart(ranges)


def test_what_some_servers_have_of_a_dead_session_is_torn_and_what_none_has_is_free_again() -> None:
    ledger = Samples(10)
    assert ledger.hand_out(1, 8) == (0, 8)
    ledger.ended(1, [(((0, 5),), ()), (((0, 3),), ())])
    assert ledger.accounts[0] == Account(handed_out=8, counted=3, torn=2, lost=3)
    assert (ledger.free, ledger.open, ledger.settled) == (5, 0, ((0, 5),))
    assert ledger.hand_out(2, 8) == (5, 10)


def test_what_servers_refused_for_ever_is_not_waited_for() -> None:
    ledger = Samples(10)
    ledger.hand_out(1, 6)
    ledger.said(1, [(((0, 2),), ((2, 6),)), ((), ((0, 4),))])
    assert ledger.accounts[0] == Account(handed_out=6, torn=2, refused=2)
    assert ledger.open_of(1) == ((4, 6),)


@pytest.mark.parametrize(("of", "counted", "is_over"), [("samples", 7, False), ("samples", 8, True)])
def test_an_epoch_is_over_once_its_fraction_is_known(of: str, counted: int, is_over: bool) -> None:
    ledger = Samples(10)
    ledger.hand_out(1, 10)
    ledger.said(1, [(((0, counted),), ())])
    assert ledger.is_over(0.75, of, [1, 2]) is is_over


def test_an_epoch_of_replicas_is_over_once_that_fraction_has_nothing_left() -> None:
    ledger = Samples(10)
    for session in (1, 2):
        ledger.hand_out(session, 5)
    assert not ledger.is_over(0.5, "replicas", [1, 2])
    ledger.said(1, [(((0, 5),), ())])
    assert ledger.is_over(0.5, "replicas", [1, 2]) and not ledger.is_over(0.75, "replicas", [1, 2])


def test_what_an_epoch_leaves_open_counts_in_it_later_and_is_not_handed_out_again() -> None:
    ledger = Samples(10)
    ledger.hand_out(1, 6)
    ledger.next_epoch()
    assert ledger.accounts[0].left_out == 4 and ledger.settled == ((6, 10),)
    ledger.ended(1, [(((0, 2),), ())])
    assert ledger.accounts[0] == Account(handed_out=6, counted=2, lost=4, left_out=8)
    assert ledger.free == 10 and ledger.hand_out(2, 4) == (10, 14)
    ledger.stop()
    ledger.ended(2, [((), ())])
    assert ledger.accounts[1] == Account(handed_out=4, lost=4, left_out=10)
    assert ledger.free == 0 and ledger.total.handed_out == 10


def test_a_ledger_goes_on_from_its_state() -> None:
    ledger = Samples(10)
    ledger.hand_out(1, 8)
    ledger.ended(1, [(((0, 5),), ()), (((0, 3),), ())])
    other = Samples.restored(10, json.loads(json.dumps(ledger.state())))
    assert other.state() == ledger.state() and other.accounts == ledger.accounts
    assert other.hand_out(2, 8) == (5, 10)
    ledger.next_epoch()
    ledger.stop()
    over = Samples.restored(10, ledger.state())
    assert over.is_stopped and over.is_over(1.0, "samples", [])
    assert over.total == ledger.total


@pytest.mark.parametrize("change", [{"epoch": "0"}, {"free": [[10, 12]]}, {"accounts": {"0": {"lots": 1}}}])
def test_what_is_no_state_of_a_ledger_is_refused(change: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Samples.restored(10, {**Samples(10).state(), **change})
