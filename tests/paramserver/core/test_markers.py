"""Markers of checkpoints: contents of a state, held messages and their order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.paramserver.fake_peers import GRADIENT, Talk, marker

from cotswold.optim.server_rules import Momentum
from cotswold.paramserver.core.settings import QueueLimits
from cotswold.wire import (
    COORDINATOR,
    CoordinatorStateAck,
    FrozenPart,
    PullFrozen,
    PullNewer,
    Write,
)


def test_a_checkpoint_has_what_came_before_all_markers_and_nothing_behind() -> None:
    talk = Talk(Momentum(0.5))
    talk.give(checkpoint=1)
    talk.applied(GRADIENT)
    assert list(talk.updates.waits_for) == ["one", "two"]
    talk.push(marker(1, 2))
    assert list(talk.updates.waits_for) == ["two"]
    after = replace(GRADIENT, number=3, samples=((5, 6),), checkpoint=1)
    assert talk.push(after) == [] and talk.drain() == [], "it waits until the shards are frozen"
    talk.push(replace(GRADIENT, session=2, samples=((7, 9),)))  # waits in the queue
    assert not talk.is_frozen
    assert len(talk.push(marker(2, 2))) == 2  # the marker's answer, and that of what waited
    frozen = talk.updates.frozen
    assert frozen is not None and frozen.versions == (2, 2)
    assert len(talk.drain()) == 1 and talk.updates.versions == {0: 3, 2: 3}
    assert frozen.samples == ((1, ((0, 5),), ()), (2, ((7, 9),), ()))
    assert frozen.vectors["velocity"][0] == [-0.75] * 4 and frozen.vectors["weights"][0] == [-1.25] * 4
    samples = ((1, ((0, 6),), ()), (2, ((7, 9),), ()))
    assert talk.give() == [CoordinatorStateAck(3, "a", samples, 1, 0, frozen.samples)]
    part = talk.say(PullFrozen(1, "velocity", (2,)))
    assert part == [FrozenPart("a", 1, "velocity", (2,), (2,), (tuple(frozen.vectors["velocity"][1]),))]
    assert talk.say(PullFrozen(1, "velocity", (2,)), "one") == [], "it is the coordinator's alone"
    assert talk.give(released_checkpoint=1) == [CoordinatorStateAck(4, "a", samples, 1, 0)]
    (gone,) = talk.say(PullFrozen(1, "weights", (0,)))
    assert isinstance(gone, FrozenPart) and gone.error == "checkpoint 1 is not kept"


def test_a_checkpoint_is_not_begun_before_the_last_was_taken() -> None:
    talk = Talk()
    talk.give(checkpoint=1)
    talk.push(marker(1, 1))
    talk.push(marker(2, 1))
    assert talk.is_frozen
    assert talk.give(checkpoint=2) == [], "of two states it keeps one"
    assert talk.updates.frozen is not None and talk.updates.frozen.checkpoint == 1
    assert talk.give(released_checkpoint=1) != [] and talk.updates.metadata.coordinator_state.checkpoint == 2


def test_a_checkpoint_is_not_begun_before_there_are_parameters() -> None:
    talk = Talk()
    del talk.server.vectors["weights"]
    assert talk.give(sessions=(), checkpoint=1) == []
    talk.server.receive(COORDINATOR, Write(1, "weights", (0, 2), ((1.0,) * 4, (2.0,) * 2)))
    assert talk.give() != []
    frozen = talk.updates.frozen
    assert frozen is not None and frozen.vectors["weights"][0] == [1.0] * 4


@pytest.mark.parametrize("joins", [False, True])
def test_a_marker_ends_no_computing_that_others_wait_for(joins: bool) -> None:
    talk = Talk(policy="wait", bound=1)
    talk.give(checkpoint=1)
    session = 2
    if joins:  # after the checkpoint began: it owes no marker, and sends one
        session = 3
        talk.give(sessions=((1, "one"), (3, "two")))
    talk.say(PullNewer("run", session, 1, (0, 2), (-1, -1)), "two")
    talk.say(replace(marker(1, 1), session=session), "two")
    talk.applied(GRADIENT)
    assert talk.push(replace(GRADIENT, number=2, versions=(1, 1))) == []
    assert talk.drain() == [], "it would be two behind"
    assert talk.updates.waits_for == ("one", "two")
    behind = replace(GRADIENT, session=session, number=2, checkpoint=1)
    assert talk.say(behind, "two") == []
    assert len(talk.drain()) == 1, "what waits behind a marker that others owe makes nobody wait"
    assert len(talk.push(marker(1, 3))) == 1 and talk.is_frozen
    assert len(talk.drain()) == 1


def test_a_pull_that_comes_after_the_marker_of_its_time_is_one_to_compute_from() -> None:
    talk = Talk(policy="wait", bound=0)
    talk.give(checkpoint=1)
    talk.push(marker(2, 1))
    talk.pull(2, 1)
    assert talk.push(GRADIENT) == [] and talk.drain() == []
    talk.push(replace(marker(2, 2), samples=()))  # a second empty update is no marker: nothing is in hand
    assert len(talk.drain()) == 1


def test_whoever_finds_no_room_behind_its_marker_makes_nobody_wait() -> None:
    talk = Talk(policy="wait", bound=0, room=QueueLimits(90, 90))
    talk.give(checkpoint=1)
    talk.push(marker(2, 1))
    talk.pull(2, 1)
    assert talk.push(GRADIENT) == [] and talk.drain() == []
    assert talk.refused(replace(GRADIENT, session=2, number=2, checkpoint=1)).is_retryable
    assert len(talk.drain()) == 1
    assert len(talk.push(marker(1, 2))) == 1 and talk.is_frozen


@pytest.mark.parametrize("joins", [False, True])
def test_markers_of_the_dead_and_of_the_new_are_not_waited_for(joins: bool) -> None:
    talk = Talk()
    talk.give(checkpoint=1)
    talk.push(marker(1, 1))
    assert not talk.is_frozen
    talk.give(sessions=((1, "one"), (3, "three")) if joins else ((1, "one"),))
    assert talk.is_frozen


def test_what_waits_behind_a_marker_of_one_who_dies_is_in_no_shard() -> None:
    talk = Talk()
    talk.give(checkpoint=1)
    talk.push(marker(1, 1))
    talk.push(replace(GRADIENT, number=2, checkpoint=1))
    assert talk.updates.queued == 1
    assert talk.give(sessions=((2, "two"),)) == [
        CoordinatorStateAck(3, "a", ((1, (), ()), (2, (), ())), 0, 0)
    ]
    assert (talk.updates.queued, talk.updates.queued_bytes, talk.weights) == (0, 0, [0.0] * 6)


def test_whoever_dies_while_a_checkpoint_is_under_way_is_in_it_with_what_it_had_before() -> None:
    talk = Talk()
    talk.give(checkpoint=1)
    talk.applied(GRADIENT)
    talk.give(sessions=((2, "two"),))
    talk.give()
    talk.push(marker(2, 1))
    frozen = talk.updates.frozen
    assert frozen is not None and frozen.samples == ((1, ((0, 5),), ()), (2, (), ()))


def test_what_is_behind_a_marker_leaves_room_for_what_is_before() -> None:
    talk = Talk(room=QueueLimits(1000, 100))
    talk.give(checkpoint=1)
    talk.push(marker(1, 1))
    assert talk.push(replace(GRADIENT, number=2, checkpoint=1)) == []
    assert talk.push(replace(GRADIENT, session=2)) == []
    talk = Talk(room=QueueLimits(1000, 90))
    talk.give(checkpoint=1)
    talk.push(marker(1, 1))
    assert talk.refused(replace(GRADIENT, number=2, checkpoint=1)).is_retryable
    assert talk.push(replace(GRADIENT, session=2)) == []


def test_a_checkpoint_without_sessions_is_frozen_at_once() -> None:
    talk = Talk()
    talk.give(checkpoint=1, sessions=())
    assert talk.is_frozen
