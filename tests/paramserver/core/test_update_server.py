"""The asynchronous half of a server in isolation: each message, repeated, late and malformed."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from math import inf, nan

import pytest
from tests.support.paramserver.fake_peers import DELTA, GRADIENT, Talk, marker

from cotswold.optim.server_rules import Adagrad, AddUpdate, Momentum, Rule, Sgd
from cotswold.paramserver.core.settings import QueueLimits
from cotswold.paramserver.core.staleness import Policy, Staleness
from cotswold.wire import (
    Applied,
    CoordinatorStateAck,
    PulledNewer,
    PullNewer,
    Update,
    UpdateRefused,
)
from cotswold.wire.ranges import intersection


def test_an_update_is_applied_when_the_queue_is_drained_and_answered_then() -> None:
    talk = Talk()
    assert talk.push(GRADIENT) == []
    assert talk.updates.queued_bytes == 48 and talk.weights == [0.0] * 6
    assert talk.drain() == [Applied(1, "a", 1, (0, 2), (1, 1), 0)]
    assert talk.weights == [-0.5] * 4 + [-1.0] * 2


def test_the_same_update_again_is_answered_again_and_changes_nothing() -> None:
    talk = Talk()
    talk.push(GRADIENT)
    assert talk.push(GRADIENT) == []  # it waits
    first = talk.drain()
    assert talk.push(GRADIENT) == first
    assert talk.drain() == [] and talk.weights == [-0.5] * 4 + [-1.0] * 2


def test_a_gap_is_refused_and_uses_up_no_number() -> None:
    talk = Talk()
    assert talk.refused(replace(GRADIENT, number=3)).reason == "expects 1"
    talk.applied(GRADIENT)


def test_updates_of_two_sessions_are_applied_in_one_pass_as_one_after_the_other() -> None:
    together, apart = Talk(Momentum(0.5)), Talk(Momentum(0.5))
    for session in (1, 2):
        update = replace(GRADIENT, session=session, rate=session, scale=1 / 3)
        together.push(update)
        apart.applied(update)
    assert len(together.drain()) == 2
    assert together.weights == apart.weights
    assert together.updates.versions == {0: 2, 2: 2}


@pytest.mark.parametrize(
    ("rule", "update", "word"),
    [
        (Sgd(), replace(GRADIENT, run="an older run"), "run"),
        (Sgd(), replace(GRADIENT, kind="hessian"), "kind"),
        (Sgd(), DELTA, "kind"),
        (Adagrad(), DELTA, "kind"),
        (AddUpdate(), GRADIENT, "kind"),
        (Sgd(), replace(GRADIENT, rate=3), "rate"),
        (Sgd(), replace(GRADIENT, scale=nan), "finite"),
        (Sgd(), replace(GRADIENT, samples=((3, 2),)), "samples"),
        (Sgd(), replace(GRADIENT, samples=((3, 5), (4, 6))), "samples"),
        (Sgd(), replace(GRADIENT, shards=(0, 1)), "shard"),
        (Sgd(), replace(GRADIENT, shards=(0, 0)), "shard"),
        (Sgd(), replace(GRADIENT, versions=(0,)), "length"),
        (Sgd(), replace(GRADIENT, buffers=((1.0,) * 4,)), "length"),
        (Sgd(), replace(GRADIENT, buffers=((1.0,) * 4, (1.0,) * 3)), "length"),
        (Sgd(), replace(GRADIENT, buffers=((1.0, nan, 1.0, 1.0), (2.0,) * 2)), "finite"),
        (Sgd(), replace(GRADIENT, buffers=((1.0,) * 4, (2.0, -inf))), "finite"),
        (Sgd(), replace(GRADIENT, examples=(1, 1)), "length"),
        (Sgd(), replace(GRADIENT, kind="factors", examples=(1,)), "length"),
        (Sgd(), replace(GRADIENT, kind="factors", examples=(-1, 0)), "length"),
        (Sgd(), replace(GRADIENT, kind="factors", examples=(1, 0)), "length"),
        (Sgd(), replace(GRADIENT, checkpoint=1), "marker"),
    ],
)
def test_what_is_wrong_is_refused_with_a_reason_counted_and_disturbs_nothing(
    rule: Rule, update: Update, word: str
) -> None:
    talk = Talk(rule)
    answer = talk.refused(update)
    assert answer.reason.startswith(f"{word}: ") and talk.updates.rejections == {word: 1}
    used_up = word not in ("run", "marker")
    if used_up:
        assert talk.refused(update) == answer, "the same answer again"
    good = DELTA if isinstance(rule, AddUpdate) else GRADIENT
    talk.applied(replace(good, number=2 if used_up else 1))
    assert talk.updates.versions == {0: 1, 2: 1} and talk.updates.queued_bytes == 0


def test_adagrad_on_accumulated_deltas_is_refused_with_a_sentence() -> None:
    assert "deltas are not squares of gradients" in Talk(Adagrad()).refused(DELTA).reason


def test_nobody_pushes_for_another_or_after_its_session() -> None:
    talk = Talk()
    (answer,) = talk.say(GRADIENT, "two")
    assert isinstance(answer, UpdateRefused) and answer.reason.startswith("session: ")
    talk.applied(GRADIENT)
    talk.give(sessions=((2, "two"), (3, "one")))
    assert talk.refused(replace(GRADIENT, number=2)).reason.startswith("session: ")
    assert talk.say(replace(GRADIENT, session=3), "one") == []  # the incarnation that follows begins at 1
    assert len(talk.drain()) == 1


def test_orders_are_the_coordinators_alone() -> None:
    talk = Talk()
    assert talk.say(replace(talk.order, number=2, sessions=()), "one") == []
    talk.applied(GRADIENT)


def test_an_order_says_what_is_applied_until_that_is_settled() -> None:
    talk = Talk()
    talk.applied(GRADIENT)
    talk.applied(replace(GRADIENT, number=2, samples=((5, 7), (9, 12))))
    assert talk.give() == [CoordinatorStateAck(2, "a", ((1, ((0, 7), (9, 12)), ()), (2, (), ())), 0, 0)]
    assert talk.give(settled_below=10) == [
        CoordinatorStateAck(3, "a", ((1, ((10, 12),), ()), (2, (), ())), 0, 0)
    ]
    assert talk.say(talk.order) == [CoordinatorStateAck(3, "a", ((1, ((10, 12),), ()), (2, (), ())), 0, 0)]
    assert talk.say(replace(talk.order, number=2)) == []


def test_what_waits_of_a_session_that_ends_is_applied_and_said() -> None:
    talk = Talk()
    talk.push(GRADIENT)
    ended = CoordinatorStateAck(2, "a", ((1, ((0, 5),), ()), (2, (), ())), 0, 0)
    assert talk.give(sessions=((2, "two"),)) == [ended]
    assert talk.weights == [-0.5] * 4 + [-1.0] * 2
    assert talk.give() == [CoordinatorStateAck(3, "a", ((2, (), ()),), 0, 0)]


def test_factors_are_multiplied_and_other_shards_come_beside() -> None:
    talk = Talk()
    errors, activations = (1.0, 2.0, 3.0, 4.0), (5.0, 6.0, 7.0, 8.0)  # two examples, rows, columns
    talk.applied(
        replace(GRADIENT, kind="factors", examples=(2, 0), buffers=(errors, (2.0, 2.0), activations))
    )
    product = [1 * 5 + 3 * 7, 1 * 6 + 3 * 8, 2 * 5 + 4 * 7, 2 * 6 + 4 * 8]
    assert talk.weights == [-each / 2 for each in product] + [-1.0] * 2


def test_factors_that_are_multiplied_when_they_come_are_not_kept_beside_the_product() -> None:
    class Lent(float):
        """A float that can be weakly referenced."""

    talk, number = Talk(), Lent(5.0)
    watched = weakref.ref(number)
    buffers = ((1.0, 2.0), (2.0, 2.0), (number, 6.0))
    assert talk.push(replace(GRADIENT, kind="factors", examples=(1, 0), buffers=buffers, decay=0.5)) == []
    del number, buffers
    gc.collect()
    assert watched() is None
    talk.drain()
    assert talk.weights == [-2.5, -3.0, -5.0, -6.0] + [-1.0] * 2


def test_rows_of_unit_norm_have_it_after_every_pass() -> None:
    talk = Talk(unit_norm=frozenset({"w"}))
    talk.applied(replace(GRADIENT, buffers=((-6.0, -8.0, 0.0, -2.0), (2.0,) * 2)))
    assert talk.weights == [0.6, 0.8, 0.0, 1.0, -1.0, -1.0]


# --- pulls ---


def test_a_pull_brings_what_is_newer_than_what_is_known() -> None:
    talk = Talk()
    assert talk.pull(0).versions == (0, 0)
    talk.applied(replace(GRADIENT, shards=(2,), versions=(0,), buffers=((2.0,) * 2,)))
    pulled = talk.pull(1, versions=(0, 0))
    assert (pulled.shards, pulled.versions, pulled.buffers) == ((2,), (1,), ((-1.0, -1.0),))
    assert talk.pull(1, versions=(0, 1)).shards == ()


def test_a_pull_does_not_wait_for_the_queue() -> None:
    talk = Talk()
    talk.push(GRADIENT)
    assert talk.pull(2).buffers[0] == (0.0,) * 4


@pytest.mark.parametrize(
    ("pull", "word"),
    [
        (PullNewer("other", 1, 1, (0,), (-1,)), "run"),
        (PullNewer("other", 0, 0, (0,), (-1,)), "run"),
        (PullNewer("run", 9, 1, (0,), (-1,)), "session"),
        (PullNewer("run", 1, 1, (1,), (-1,)), "shard"),
        (PullNewer("run", 1, 1, (0,), ()), "length"),
    ],
)
def test_a_pull_of_what_is_not_there_is_answered_with_an_error(pull: PullNewer, word: str) -> None:
    (answer,) = Talk().say(pull, "one")
    assert isinstance(answer, PulledNewer) and (answer.error or "").startswith(word)


# --- capacity ---


@pytest.mark.parametrize("room", [QueueLimits(40, 1000), QueueLimits(1000, 60)])
def test_for_what_finds_no_room_that_which_waits_is_applied_at_once(room: QueueLimits) -> None:
    talk = Talk(room=room)
    assert talk.push(GRADIENT) == []
    second = replace(GRADIENT, session=2)
    assert talk.push(second) == [Applied(1, "a", 1, (0, 2), (1, 1), 0)]
    assert talk.updates.queued_bytes == 48
    assert len(talk.drain()) == 1


def test_what_finds_no_room_behind_a_marker_that_others_owe_comes_again() -> None:
    talk = Talk(room=QueueLimits(96, 96))
    talk.give(checkpoint=1)
    talk.push(marker(1, 1))
    behind = replace(GRADIENT, number=2, checkpoint=1)
    assert talk.push(behind) == []
    last = replace(behind, number=3)
    answer = talk.refused(last)
    assert answer.is_retryable and answer.reason.startswith("busy: 48 bytes")
    talk.push(marker(2, 1))
    assert len(talk.drain()) == 1
    talk.applied(last)


def test_of_more_sessions_than_there_is_room_for_nobody_is_told_to_come_again() -> None:
    talk = Talk(room=QueueLimits(16 * 48, 16 * 48))
    names = {number: f"loop-{number}" for number in range(11, 35)}
    talk.give(sessions=tuple(names.items()))
    answers = [answer for each in names for answer in talk.say(replace(GRADIENT, session=each), names[each])]
    answers += talk.drain()
    assert len(answers) == 24 and all(isinstance(answer, Applied) for answer in answers)
    assert not talk.updates.rejections


# --- staleness ---


def test_staleness_is_measured_by_shard() -> None:
    talk = Talk()
    for number in range(1, 5):
        talk.applied(replace(GRADIENT, number=number))
    histogram = talk.updates.staleness[0]
    assert (histogram.bins, histogram.mean, histogram.largest) == ([1, 1, 2], 1.5, 3)


def test_a_stale_update_is_scaled_down() -> None:
    talk = Talk(policy="scale", bound=1)
    for number in range(1, 4):
        talk.applied(replace(GRADIENT, number=number))
    assert talk.weights[0] == -0.5 * (1 + 1 + 1 / 2)


def test_a_stale_update_is_dropped_and_counted_and_its_number_is_used_up() -> None:
    talk = Talk(policy="drop", bound=0)
    talk.push(GRADIENT)
    talk.push(replace(GRADIENT, session=2))
    applied, dropped = talk.drain()
    assert isinstance(applied, Applied) and isinstance(dropped, UpdateRefused)
    assert not dropped.is_retryable and talk.updates.rejections == {"stale": 1}
    assert talk.give() == [CoordinatorStateAck(2, "a", ((1, ((0, 5),), ()), (2, (), ((0, 5),))), 0, 0)]
    assert talk.push(replace(GRADIENT, session=2)) == [dropped]
    talk.applied(replace(GRADIENT, session=2, number=2, versions=(1, 1)))


def test_updates_that_would_make_another_too_stale_wait_for_its_push() -> None:
    talk = Talk(policy="wait", bound=1)
    talk.pull(2)
    talk.pull(1)
    talk.applied(GRADIENT)
    talk.pull(1, 2)
    assert talk.push(replace(GRADIENT, number=2, versions=(1, 1))) == []
    assert talk.drain() == []  # session 2 would be two behind
    assert list(talk.updates.waits_for) == ["two"]
    assert talk.push(replace(GRADIENT, session=2)) == []
    assert len(talk.drain()) == 2
    assert not list(talk.updates.waits_for)
    assert talk.updates.staleness[0].largest <= 1
    of_one, of_two = (talk.updates.replicas[name] for name in ("one", "two"))
    assert (of_one.updates, of_two.updates, of_two.largest) == (4, 2, 1)


def test_whoever_pulls_again_may_compute_from_its_first_pull() -> None:
    talk = Talk(policy="wait", bound=1)
    talk.pull(2)
    talk.applied(GRADIENT)
    talk.pull(2)
    assert talk.push(replace(GRADIENT, number=2, versions=(1, 1))) == []
    assert talk.drain() == [] and talk.updates.waits_for == ("two",)
    talk.push(replace(GRADIENT, session=2))
    assert len(talk.drain()) == 2 and talk.updates.staleness[0].largest == 1


@pytest.mark.parametrize("how", ["an empty update", "an end", "no room"])
def test_what_waits_for_another_does_not_wait_for_ever(how: str) -> None:
    talk = Talk(policy="wait", bound=0, room=QueueLimits(48, 48))
    talk.pull(2)
    talk.push(GRADIENT)
    assert talk.drain() == []
    if how == "an empty update":
        talk.push(replace(GRADIENT, session=2, shards=(), versions=(), buffers=(), samples=()))
    elif how == "an end":
        talk.give(sessions=((1, "one"),))
    else:
        assert len(talk.push(replace(GRADIENT, session=2))) == 1
    assert len(talk.drain()) == 1


@pytest.mark.parametrize(("policy", "bound"), [("scale", 0), ("drop", -1), ("sometimes", 1)])
def test_a_bound_that_means_nothing_is_refused(policy: Policy, bound: int) -> None:
    with pytest.raises(ValueError, match="staleness"):
        Staleness(policy, bound)


def test_an_update_beyond_the_bound_is_scaled_by_the_bound_over_its_staleness() -> None:
    assert [Staleness("scale", 2).scale(each) for each in (0, 2, 4, 8)] == [1.0, 1.0, 0.5, 0.25]
    assert [Staleness("drop", 2).scale(each) for each in (2, 3)] == [1.0, 0.0]


def test_samples_of_a_session_that_has_ended_are_not_applied_again() -> None:
    talk = Talk(deals=True)
    talk.applied(GRADIENT)
    weights = talk.weights
    talk.give(sessions=((2, "two"),))
    talk.give()  # the session ended with an order before
    again = replace(GRADIENT, session=2)
    assert talk.push(again) == [Applied(2, "a", 1, (0, 2), (1, 1), 0)]
    assert talk.push(again) == [Applied(2, "a", 1, (0, 2), (1, 1), 0)], "the same answer again"
    assert talk.drain() == [] and talk.weights == weights
    (said,) = [each for each in talk.give() if isinstance(each, CoordinatorStateAck)]
    assert said.samples == ((2, ((0, 5),), ()),), "they are applied, as this session's too"
    talk.applied(replace(again, number=2, samples=((5, 9),)))


def test_an_update_of_which_a_part_is_applied_is_refused() -> None:
    talk = Talk(deals=True)
    talk.applied(GRADIENT)
    weights = talk.weights
    refusal = talk.refused(replace(GRADIENT, session=2, samples=((3, 6),)))
    assert refusal.reason.startswith("places: samples ((3, 5),) of ((3, 6),)") and not refusal.is_retryable
    assert talk.drain() == [] and talk.weights == weights


@pytest.mark.parametrize("wrong", [{"rate": 3}, {"samples": ((3, 9),)}])
def test_a_refused_update_leaves_those_of_its_samples_applied_that_are(wrong: dict[str, object]) -> None:
    talk = Talk(deals=True)
    talk.applied(GRADIENT)
    talk.give(sessions=((2, "two"),))
    talk.refused(replace(GRADIENT, session=2, **wrong))  # type: ignore[arg-type]  # values of every field
    (said,) = [each for each in talk.give() if isinstance(each, CoordinatorStateAck)]
    ((_, applied, missed),) = said.samples
    assert applied == intersection(((0, 5),), missed) and missed, "torn where other servers refuse it, too"


def test_samples_that_are_settled_are_known_no_more() -> None:
    talk = Talk(deals=True)
    talk.applied(GRADIENT)
    talk.give(settled_below=5)
    talk.applied(replace(GRADIENT, session=2, samples=((5, 9),)))


def test_samples_that_sessions_bring_themselves_have_numbers_of_their_own() -> None:
    talk = Talk()
    talk.applied(GRADIENT)
    talk.applied(replace(GRADIENT, session=2))
