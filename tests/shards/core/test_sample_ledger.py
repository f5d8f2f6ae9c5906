"""The ledger of samples accounts for every place, compared with sets of whole numbers."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotswold.shards.core.sample_ledger import SampleCounts, SampleLedger
from cotswold.wire import Ranges
from cotswold.wire.ranges import clip, difference, intersection, is_valid, size, union

_RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6)


def places(ranges: Ranges) -> set[int]:
    return {place for start, stop in ranges for place in range(start, stop)}


@given(_RANGES, _RANGES)
def test_ranges_are_sets_of_places(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    one, other = union(left), union(right)
    assert places(one) == places(tuple(left))
    for found, expected in (
        (union(one, other), places(one) | places(other)),
        (intersection(one, other), places(one) & places(other)),
        (difference(one, other), places(one) - places(other)),
        (clip(one, 7, 19), places(one) & set(range(7, 19))),
    ):
        assert places(found) == expected and size(found) == len(expected)
        assert all(start < stop for start, stop in found)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(found))
    assert is_valid(union(left))


@pytest.mark.parametrize("ranges", [((1, 1),), ((2, 1),), ((0, 2), (2, 3)), ((4, 5), (0, 1)), ((-1, 1),)])
def test_ranges_that_are_not_ascending_and_apart_are_seen(ranges: Ranges) -> None:
    assert not is_valid(ranges)


def divided() -> SampleLedger:
    """Return a ledger whose session died with samples 0 to 7: one server has five, the other three."""
    ledger = SampleLedger(10)
    assert ledger.assign(1, 8) == (0, 8)
    ledger.end_session(1, [(((0, 5),), ()), (((0, 3),), ())])
    return ledger


def test_what_some_servers_have_of_a_dead_session_is_handed_out_until_all_have_it() -> None:
    ledger = divided()
    assert ledger.accounts[0] == SampleCounts(handed_out=8, counted=3, lost=5)
    assert (ledger.free, ledger.open, ledger.settled, ledger.divided) == (7, 0, ((0, 3),), ((3, 5),))
    assert ledger.assign(2, 8) == (3, 5) and ledger.is_divided(4)
    assert ledger.assign(2, 8) == (5, 10) and not ledger.is_divided(5)
    ledger.record_report(2, [(((3, 10),), ()), (((3, 10),), ())])
    assert ledger.accounts[0] == SampleCounts(handed_out=15, counted=10, lost=5)
    assert ledger.divided == () and ledger.settled == ((0, 10),)


def test_no_assignment_mixes_samples_that_a_server_has_and_lacks() -> None:
    ledger = SampleLedger(20)
    ledger.assign(1, 12)
    ledger.end_session(1, [(((0, 10),), ()), (((0, 4), (8, 10)), ()), (((0, 6),), ())])
    hands = [ledger.assign(2, 20) for _ in range(4)]
    assert hands == [(4, 6), (6, 8), (8, 10), (10, 20)]
    ledger.end_session(2, [((), ()), (((4, 5),), ()), ((), ())])
    assert ledger.assign(3, 20) == (4, 5), "a hand that was pushed in part has another end"


def test_an_assignment_ends_where_the_disk_of_a_server_that_lost_its_memory_does() -> None:
    ledger = SampleLedger(20)
    ledger.assign(1, 10)
    ledger.record_report(1, [(((0, 10),), ()), (((0, 10),), ())])
    assert ledger.revoke({1: ((0, 5),)}) == ((5, 10),)
    assert ledger.revoke({1: ((0, 7),)}) == (), "the other server has lost less"
    assert [ledger.assign(2, 20) for _ in range(3)] == [(5, 7), (7, 10), (10, 20)]


def test_an_epoch_is_not_over_while_some_servers_lack_what_others_have() -> None:
    ledger = divided()
    assert not ledger.can_end_epoch(0.3, "samples", [2])
    ledger.assign(2, 2)
    assert ledger.can_end_epoch(0.3, "samples", [2])
    ledger.next_epoch()
    ledger.end_session(2, [((), ()), ((), ())])
    assert ledger.divided == ((3, 5),) and ledger.accounts[0].left_out == 5
    assert ledger.assign(3, 8) == (3, 5), "also in the next epoch"


def test_while_it_is_paused_a_ledger_hands_out_what_is_divided_alone() -> None:
    ledger = divided()
    assert ledger.assign(2, 8, only_divided=True) == (3, 5)
    assert ledger.assign(2, 8, only_divided=True) is None and ledger.free == 5


def test_what_is_divided_and_is_not_to_be_handed_out_again_is_torn() -> None:
    ledger = divided()
    assert ledger.tear() == ((3, 5),)
    assert ledger.accounts[0] == SampleCounts(handed_out=8, counted=3, torn=2, lost=3)
    assert ledger.divided == () and ledger.assign(2, 8) == (5, 10)


def test_what_servers_refused_for_ever_is_not_waited_for() -> None:
    ledger = SampleLedger(10)
    ledger.assign(1, 6)
    ledger.record_report(1, [(((0, 2),), ((2, 6),)), ((), ((0, 4),))])
    assert ledger.accounts[0] == SampleCounts(handed_out=6, torn=2, refused=2)
    assert ledger.open_of(1) == ((4, 6),)


@pytest.mark.parametrize(("of", "counted", "is_over"), [("samples", 7, False), ("samples", 8, True)])
def test_an_epoch_is_over_once_its_fraction_is_known(of: str, counted: int, is_over: bool) -> None:
    ledger = SampleLedger(10)
    ledger.assign(1, 10)
    ledger.record_report(1, [(((0, counted),), ())])
    assert ledger.can_end_epoch(0.75, of, [1, 2]) is is_over


def test_an_epoch_of_replicas_is_over_once_that_fraction_has_nothing_left() -> None:
    ledger = SampleLedger(10)
    for session in (1, 2):
        ledger.assign(session, 5)
    assert not ledger.can_end_epoch(0.5, "replicas", [1, 2])
    ledger.record_report(1, [(((0, 5),), ())])
    assert ledger.can_end_epoch(0.5, "replicas", [1, 2]) and not ledger.can_end_epoch(
        0.75, "replicas", [1, 2]
    )


def test_what_an_epoch_leaves_open_counts_in_it_later_and_is_not_handed_out_again() -> None:
    ledger = SampleLedger(10)
    ledger.assign(1, 6)
    ledger.next_epoch()
    assert ledger.accounts[0].left_out == 4 and ledger.settled == ((6, 10),)
    ledger.end_session(1, [(((0, 2),), ())])
    assert ledger.accounts[0] == SampleCounts(handed_out=6, counted=2, lost=4, left_out=8)
    assert ledger.free == 10 and ledger.assign(2, 4) == (10, 14)
    ledger.stop()
    ledger.end_session(2, [((), ())])
    assert ledger.accounts[1] == SampleCounts(handed_out=4, lost=4, left_out=10)
    assert ledger.free == 0 and ledger.total.handed_out == 10


def test_a_ledger_goes_on_from_its_state() -> None:
    ledger = divided()
    ledger.tear()
    other = SampleLedger.restored(10, json.loads(json.dumps(ledger.state())))
    assert other.state() == ledger.state() and other.accounts == ledger.accounts
    assert other.assign(2, 8) == (5, 10)
    ledger.next_epoch()
    ledger.stop()
    over = SampleLedger.restored(10, ledger.state())
    assert over.is_stopped and over.can_end_epoch(1.0, "samples", [])
    assert over.total == ledger.total


@pytest.mark.parametrize("change", [{"epoch": "0"}, {"free": [[10, 12]]}, {"accounts": {"0": {"lots": 1}}}])
def test_what_is_no_state_of_a_ledger_is_refused(change: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        SampleLedger.restored(10, {**SampleLedger(10).state(), **change})
