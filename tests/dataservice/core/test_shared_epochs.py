"""Assignment of samples in a shared epoch, message by message."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotswold.dataservice.core import shared_epochs as sharing
from cotswold.dataservice.core.shared_epochs import EpochCounts, SharedEpochs, StreamTotals
from cotswold.wire import EpochAssignment, EpochReport, Send

SAY = EpochReport("a", "pool", "s", (("split", "train"),), 10, False, 0, 1, 1, 3, 2, (), (), False)
"""A trainer that wants two batches of three of ten samples."""


class Talk:
    """A head, and the last message to each trainer."""

    def __init__(self) -> None:
        self.sharing, self.now = SharedEpochs(recall_seconds=1.0), 0.0
        self.heard: dict[str, EpochAssignment] = {}
        self._numbers: dict[tuple[str, int], int] = {}

    def say(self, name: str, **more: object) -> EpochAssignment:
        said = replace(SAY, name=name, **more)  # type: ignore[arg-type]  # fields by name
        at = name, said.session
        self._numbers[at] = self._numbers.get(at, 0) + 1
        self._hear(self.sharing.receive(replace(said, number=self._numbers[at]), self.now))
        return self.heard[name]

    def gone(self, name: str) -> None:
        self._hear(self.sharing.on_trainer_lost(name, self.now))

    @property
    def account(self) -> EpochCounts:
        return self.sharing.accounts[0]

    def _hear(self, sends: list[Send]) -> None:
        for each in sends:
            assert isinstance(each.message, EpochAssignment)
            self.heard[each.to] = each.message


def test_each_trainer_is_dealt_as_many_batches_as_it_has_room_for() -> None:
    talk = Talk()
    assert talk.say("a").batches == ((0, 3), (3, 6))
    assert talk.say("b").batches == ((6, 9), (9, 10))
    assert talk.say("a").batches == ((0, 3), (3, 6)), "as often as it asks"
    assert (talk.account.dealt, talk.account.free) == (10, 0)


def test_what_is_handed_over_makes_room() -> None:
    talk = Talk()
    talk.say("a")
    assert talk.say("a", taking=((0, 3),)).taken == ((0, 3),)
    assert talk.say("a", delivered=((0, 3),)).batches == ((3, 6), (6, 9))
    assert (talk.account.delivered, talk.account.by) == (3, {"a": 3})


def test_a_batch_of_another_trainer_is_not_taken() -> None:
    talk = Talk()
    talk.say("a")
    assert talk.say("b", taking=((0, 3),), delivered=((3, 6),)).taken == ()
    assert talk.account.delivered == 0


def test_what_a_dead_trainer_had_not_taken_is_dealt_again_and_what_it_had_taken_is_counted() -> None:
    talk = Talk()
    talk.say("a", max_batches=4)
    talk.say("a", max_batches=4, taking=((0, 3),))
    talk.say("b", max_batches=4)
    talk.gone("a")
    assert talk.heard["b"].batches == ((3, 6), (6, 9), (9, 10))
    assert (talk.account.died, talk.account.dealt_again) == (3, 7)


def test_at_least_once_what_a_dead_trainer_had_taken_is_dealt_again_too() -> None:
    talk = Talk()
    talk.say("a", at_least_once=True, max_batches=4, taking=())
    talk.say("a", at_least_once=True, max_batches=4, taking=((0, 3),))
    talk.say("b", at_least_once=True, max_batches=4)
    talk.gone("a")
    assert talk.heard["b"].batches[0] == (0, 3)
    assert talk.account.died == 0


def test_whoever_leaves_gives_back_what_its_loop_has_not_had() -> None:
    talk = Talk()
    talk.say("a", max_batches=4)
    talk.say("a", max_batches=4, taking=((0, 3), (3, 6)))
    assert talk.say("a", delivered=((0, 3),), is_leaving=True).is_ended
    assert talk.say("b", max_batches=4).batches == ((3, 6), (6, 9), (9, 10))
    assert (talk.account.delivered, talk.account.died) == (3, 0)


def test_an_idle_trainer_gets_what_another_one_has_had_untaken_for_long() -> None:
    talk = Talk()
    talk.say("a", max_batches=4)
    talk.say("a", max_batches=4, taking=((0, 3),))
    assert talk.say("b").batches == ()
    talk.now = 1.0
    assert talk.say("b").batches == ((9, 10),)
    assert talk.say("a", max_batches=4, taking=((9, 10),)).batches == ((0, 3), (3, 6), (6, 9))
    assert talk.say("a", max_batches=4).taken == ((0, 3),)


def test_an_epoch_is_over_once_everything_is_taken_and_somebody_has_nothing_left() -> None:
    talk = Talk()
    talk.say("a", max_batches=4)
    over = [talk.say("b").is_exhausted]
    all_of_it = ((0, 3), (3, 6), (6, 9), (9, 10))
    for taken in (3, 4):
        over += [
            talk.say("a", max_batches=4, taking=all_of_it[:taken]).is_exhausted,
            talk.heard["b"].is_exhausted,
        ]
    assert over == [False, False, False, True, True]
    talk.say("a", delivered=all_of_it[:3], is_leaving=True)
    assert (talk.account.delivered, talk.account.left_out) == (9, 1)


def test_an_epoch_that_nobody_draws_has_ended_early_once_a_later_one_is_on() -> None:
    talk = Talk()
    talk.say("a")
    talk.say("a", taking=((0, 3),), delivered=((0, 3),), is_leaving=True)
    before = talk.account
    assert talk.say("a", session=2, epoch=1).epoch == 1
    after = talk.account
    assert (before.is_over, after.is_over, before.left_out, after.left_out) == (False, True, 0, 7)


def test_the_epoch_that_is_on_is_the_newest_or_the_one_after_it() -> None:
    talk = Talk()
    assert talk.say("a", epoch=-1).epoch == 0
    assert talk.say("b", epoch=-1).epoch == 0
    batches = ((0, 3), (3, 6), (6, 9), (9, 10))
    talk.say("a", max_batches=4, taking=batches)
    talk.say("b", max_batches=4, taking=batches)
    talk.say("a", max_batches=4, delivered=batches)
    talk.say("b", max_batches=4, delivered=batches)
    assert talk.account.is_over
    assert talk.say("c", epoch=-1).epoch == 1


def test_a_session_that_has_ended_is_not_begun_anew_by_a_late_message() -> None:
    talk = Talk()
    talk.say("a")
    talk.gone("a")
    assert talk.say("a").is_ended
    assert (talk.account.dealt, talk.account.free) == (0, 10)
    assert talk.say("a", session=2).batches == ((0, 3), (3, 6))


def test_the_totals_of_a_stream_count_epochs_that_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_MAX_EPOCHS", 1)
    talk = Talk()
    talk.say("a", max_batches=4)
    talk.say("a", max_batches=4, taking=((0, 3), (3, 6)), delivered=((0, 3),))
    talk.gone("a")
    talk.say("b", epoch=2)
    assert [each.epoch for each in talk.sharing.accounts] == [2]
    (totals,) = talk.sharing.totals
    assert totals == StreamTotals("s", 2, delivered=3, died=3, left_out=4, dealt_again=4, dealt=6, free=4)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"description": (("split", "test"),)}, "has split train, but this trainer wants split test; use"),
        (
            {"description": (("split", "train"), ("seed", "1"))},
            "has seed None, but this trainer wants seed 1",
        ),
        ({"samples": 11}, "has samples 10, but this trainer wants samples 11; use another name"),
        ({"at_least_once": True}, "requests otherwise"),
        ({"batch_samples": 0}, "do not fit epoch"),
        ({"max_batches": 1000}, "do not fit epoch"),
    ],
)
def test_whoever_wants_something_else_of_a_stream_is_told_why_not(other: dict[str, object], why: str) -> None:
    talk = Talk()
    talk.say("a")
    refused = talk.say("b", **other)
    assert refused.is_ended and why in refused.why
    assert talk.account.dealt == 6


def test_trainers_that_have_ended_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_TRAINERS", 3)
    talk = Talk()
    for number in range(5):
        talk.say(f"trainer-{number}", is_leaving=True)
    assert talk.say("trainer-4").is_ended, "a late message of the last begins nothing"
    assert len(talk.sharing._ended_sessions) == 3
