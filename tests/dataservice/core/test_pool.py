"""The head of a pool and a trainer, message by message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from cotswold.dataservice.core.epoch_pass import SharedEpochSettings
from cotswold.dataservice.core.pool import PoolState
from cotswold.dataservice.core.request_scheduler import RequestSettings
from cotswold.dataservice.core.trainer import BatchRequester
from cotswold.wire import (
    POOL,
    BatchReply,
    BatchRequest,
    DataServerReport,
    EpochAssignment,
    EpochReport,
    JoinPool,
    LeavePool,
    Message,
    PoolMembers,
    Send,
    Shutdown,
)

OFFER = DataServerReport("s", "at s", '{"store": "images"}', 0, 0.0, 0, 0, 0, 0, 0)
ROSTER = PoolMembers("p", 1, (("s", "at s"),), OFFER.terms)
DRAW = EpochReport("t", "p", "epochs", (), 10, False, 0, 1, 1, 3, 2, (), (), False)
DEALT = EpochAssignment("epochs", 1, 1, 1, 0, ((0, 3), (3, 6)), (), False, False)


def pool() -> PoolState:
    found = PoolState("p", silent_seconds=3.0)
    found.receive("s", OFFER, 0.0)
    return found


def attend(found: PoolState, now: float = 0.0, **more: object) -> list[Send]:
    return found.receive("t", replace(JoinPool("t", "at t", "images", 0), **more), now)  # type: ignore[arg-type]  # by name


def test_a_trainer_hears_who_serves_until_it_has_heard_it() -> None:
    found = pool()
    assert attend(found) == [Send("t", found.members_message)] == attend(found)
    assert attend(found, version=found.version) == []
    found.receive("u", replace(OFFER, name="u"), 0.0)
    assert [name for name, _ in found.members_message.servers] == ["s", "u"]
    assert attend(found, version=found.version - 1) == [Send("t", found.members_message)]


def test_all_trainers_hear_of_servers_that_go() -> None:
    departs: tuple[Callable[[PoolState], list[Send]], ...] = (
        lambda found: found.receive("s", LeavePool("s"), 1.0),
        lambda found: found.on_lost("s", 1.0),
        lambda found: (attend(found, 3.1, version=found.version), found.tick(3.1))[1],
    )
    for depart in departs:
        found = pool()
        attend(found)
        assert depart(found) == [Send("t", found.members_message)]
        assert found.members_message.servers == ()


def test_a_server_of_something_else_is_told_to_go() -> None:
    found = pool()
    other = replace(OFFER, name="u", terms='{"store": "sounds"}')
    (send,) = found.receive("u", other, 0.0)
    assert send == Send("u", Shutdown(0, "the other servers of the pool have other terms"))
    assert list(found.servers) == ["s"]


@pytest.mark.parametrize("terms", ["", "no JSON", "[]", "{}", '{"store": 3}', "[" * 100_000])
def test_a_server_whose_terms_are_none_is_told_to_go_and_the_next_one_serves(terms: str) -> None:
    found = PoolState("p")
    (send,) = found.receive("u", replace(OFFER, name="u", terms=terms), 0.0)
    assert isinstance(send.message, Shutdown) and "no store" in send.message.why
    assert attend(found) == [Send("t", found.members_message)] and not found.members_message.servers
    found.receive("s", OFFER, 0.0)
    assert list(found.servers) == ["s"]


def test_a_trainer_that_came_before_the_first_server_hears_only_why_another_store_is_served() -> None:
    found = PoolState("p", silent_seconds=3.0)
    attend(found, store="sounds")
    (send,) = found.receive("s", OFFER, 0.0)
    assert isinstance(send.message, PoolMembers) and "not sounds" in send.message.why
    assert send.to == "t" and not send.message.servers and not found.trainers


def test_a_trainer_of_another_store_is_told_why_not() -> None:
    found = pool()
    (send,) = attend(found, store="sounds")
    assert isinstance(send.message, PoolMembers) and "not sounds" in send.message.why
    assert not found.trainers


def test_nobody_speaks_for_another() -> None:
    found = pool()
    assert found.receive("u", JoinPool("t", "at t", "", 0), 0.0) == []
    assert found.receive("u", replace(OFFER, name="v"), 0.0) == []
    attend(found)
    assert found.receive("u", DRAW, 0.0) == []
    assert (list(found.trainers), list(found.servers)) == (["t"], ["s"])


def test_whoever_draws_attends_the_same_pool() -> None:
    found = pool()
    assert found.receive("t", DRAW, 0.0) == []
    attend(found)
    assert found.receive("t", replace(DRAW, pool="another"), 0.0) == []
    (send,) = found.receive("t", DRAW, 0.0)
    assert isinstance(send.message, EpochAssignment) and send.message.batches == ((0, 3), (3, 6))


def test_a_trainer_that_is_silent_or_departs_gives_back_what_it_drew() -> None:
    goes: tuple[Callable[[PoolState], object], ...] = (
        lambda found: found.tick(3.1),
        lambda found: found.receive("t", LeavePool("t"), 1.0),
    )
    for go in goes:
        found = pool()
        attend(found)
        found.receive("t", DRAW, 0.0)
        go(found)
        assert not found.trainers
        assert found.shared_epochs.accounts[0].free == 10


def test_a_head_that_stood_still_takes_nobody_for_silent() -> None:
    found = pool()
    attend(found)
    found.exclude_stall(100.0)
    assert found.tick(102.0) == []
    assert (list(found.trainers), list(found.servers)) == (["t"], ["s"])


# --- a trainer ---


def here() -> BatchRequester:
    found = BatchRequester("t", "at t", "images", RequestSettings(window=4, no_server_seconds=5.0), 0.0)
    found.receive(POOL, ROSTER, 0.0)
    assert found.is_joined
    return found


M = TypeVar("M", bound=Message)


def said(sends: list[Send], kind: type[M]) -> list[M]:
    return [each.message for each in sends if isinstance(each.message, kind)]


def test_a_trainer_says_in_every_beat_which_roster_it_has() -> None:
    found = here()
    versions = [message.version for now in (0.0, 0.5, 1.0) for message in said(found.tick(now), JoinPool)]
    assert versions == [1, 1]
    found.on_lost("s", "it ended", 1.5)
    assert [message.version for message in said(found.tick(2.0), JoinPool)] == [0], "it asks anew"


def test_an_older_roster_is_dropped_and_one_of_another_pool_is_an_error() -> None:
    found = here()
    found.receive(POOL, replace(ROSTER, version=0, servers=()), 0.0)
    assert list(found.addresses) == ["s"]
    found.receive(POOL, replace(ROSTER, pool="q", version=7), 0.0)
    assert "another pool" in found.failure(0.0)


def test_the_end_of_the_head_is_an_error() -> None:
    ends: tuple[tuple[Callable[[BatchRequester], object], str], ...] = (
        (lambda found: found.on_lost(POOL, "it was killed", 0.0), "is lost: it was killed"),
        (lambda found: found.receive(POOL, Shutdown(0), 0.0), "has ended"),
        (lambda found: found.receive(POOL, Shutdown(0, "all are dead"), 0.0), "has ended: all are dead"),
        (lambda found: found.receive(POOL, replace(ROSTER, why="not you"), 0.0), "not you"),
    )
    for end, why in ends:
        found = here()
        end(found)
        assert why in found.failure(0.0)


def drawing(*, at_least_once: bool = False) -> BatchRequester:
    """Return a trainer that was assigned two batches and has requested them."""
    found = here()
    found.start_pass(SharedEpochSettings("epochs", (), 10, 3, 2, at_least_once), 0, 0.0)
    found.receive(POOL, DEALT, 0.0)
    asks = said(
        found.begin(lambda number, epoch, batch: BatchRequest(number, "", epoch, 3, (batch,)), 0.0),
        BatchRequest,
    )
    assert [ask.buffers for ask in asks] == [((0, 3),), ((3, 6),)]
    return found


def make(found: BatchRequester, number: int) -> list[EpochReport]:
    found.receive("s", BatchReply("s", number, (1, 1, 1, 3), (3,), ()), 0.1)
    return said(found.tick(0.1), EpochReport)


def test_a_batch_is_handed_over_only_once_it_is_taken() -> None:
    found = drawing()
    assert make(found, 1)[-1].taking == ((0, 3),)
    assert found.next(0.2)[0] is None
    found.receive(POOL, replace(DEALT, number=2, last_report=2, taken=((0, 3),)), 0.3)
    batch, sends = found.next(0.4)
    assert batch is not None and batch.number == 1
    assert said(sends, EpochReport)[-1].delivered == ((0, 3),)


def test_what_the_head_lists_no_more_another_trainer_has() -> None:
    found = drawing()
    make(found, 1)
    found.receive(POOL, replace(DEALT, number=2, last_report=2, batches=((3, 6),), taken=()), 0.3)
    assert found.requests.numbers == (2,)


def test_at_least_once_a_batch_is_handed_over_once_the_loop_comes_back() -> None:
    found = drawing(at_least_once=True)
    make(found, 1)
    found.receive(POOL, replace(DEALT, number=2, last_report=2, taken=((0, 3),)), 0.3)
    batch, sends = found.next(0.4)
    assert batch is not None and not said(sends, EpochReport)
    assert said(found.next(0.5)[1], EpochReport)[-1].delivered == ((0, 3),)


def test_a_trainer_that_was_taken_for_dead_begins_anew_with_what_it_had_taken() -> None:
    found = drawing()
    make(found, 1)
    found.receive(POOL, replace(DEALT, number=2, last_report=2, taken=((0, 3),)), 0.3)
    found.receive(POOL, replace(DEALT, number=0, is_ended=True, batches=()), 0.4)
    assert found.requests.numbers == (1,), "what was not taken is another's"
    assert said(found.tick(0.5), EpochReport)[-1].session == 2
    assert found.next(0.6)[0] is not None


def test_whoever_leaves_says_so_until_the_head_knows() -> None:
    found = drawing()
    (left,) = said(found.leave_epoch(0.2), EpochReport)
    assert left.is_leaving and found.requests.numbers == ()
    assert said(found.tick(1.5), EpochReport)[-1].is_leaving
    found.receive(POOL, replace(DEALT, number=0, is_ended=True), 2.0)
    assert said(found.tick(9.0), EpochReport) == []
