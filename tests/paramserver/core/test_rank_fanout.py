"""A replica of several ranks: the messages of each rank to a server, and the server's handling of
the parts.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.paramserver.fake_peers import GRADIENT, Talk, marker

from cotswold.paramserver.core.rank import ReplicaRank
from cotswold.paramserver.core.rank_fanout import RankFanout, RemoteBuffers, is_rank_of, rank_name
from cotswold.paramserver.core.settings import QueueLimits
from cotswold.wire import (
    Applied,
    Message,
    PulledNewer,
    PulledPart,
    PullNewer,
    PullPart,
    PushPart,
    Send,
    Update,
    UpdateRefused,
)

FIRST = replace(GRADIENT, shards=(0,), versions=(0,), buffers=((1.0,) * 4,), ranks=(0, 1))
SECOND = replace(FIRST, shards=(2,), buffers=((2.0,) * 2,), rank=1)


class TalkOfRanks(Talk):
    """A conversation in which the first session's replica has two ranks."""

    def part(self, update: Update) -> list[Message]:
        return self.say(update, rank_name("one", update.rank))


# --- a server ---


@pytest.mark.parametrize("order", [(FIRST, SECOND), (SECOND, FIRST)], ids=["in order", "the other first"])
def test_parts_are_one_update_whoever_comes_first(order: tuple[Update, Update]) -> None:
    talk = TalkOfRanks()
    assert talk.part(order[0]) == [] and talk.updates.queued == 0
    assert talk.part(order[1]) == [] and talk.updates.queued == 1
    assert talk.updates.receive("nobody", GRADIENT)[0].to == "nobody"
    (answer,) = talk.updates.drain()
    assert answer == Send("one", Applied(1, "a", 1, (0, 2), (1, 1), 0)), "the first rank hears of it"
    assert talk.weights == [-0.5] * 4 + [-1.0] * 2
    assert talk.updates.staleness[0].updates == talk.updates.staleness[2].updates == 1


def test_a_part_that_comes_twice_or_late_changes_nothing() -> None:
    talk = TalkOfRanks()
    for each in (SECOND, SECOND, FIRST, SECOND):
        assert talk.part(each) == []
    applied = talk.drain()
    assert talk.part(SECOND) == talk.part(FIRST) == applied
    assert talk.updates.queued == 0 and talk.weights == [-0.5] * 4 + [-1.0] * 2


def test_of_a_session_that_ends_before_all_parts_are_in_no_shard_has_any() -> None:
    talk = TalkOfRanks()
    talk.part(SECOND)
    (ended,) = talk.give(sessions=((2, "two"),))
    assert getattr(ended, "samples", None) == ((1, (), ()), (2, (), ()))
    assert talk.drain() == [] and talk.weights == [0.0] * 6
    assert [type(each) for each in talk.part(FIRST)] == [UpdateRefused]


def test_a_rank_says_its_own_parts_alone_and_may_pull() -> None:
    talk = TalkOfRanks()
    for update, sender in ((SECOND, "one"), (FIRST, "one/1"), (SECOND, "two/1"), (SECOND, "one/01")):
        (answer,) = talk.say(update, sender)
        assert isinstance(answer, UpdateRefused) and answer.reason.startswith("session: "), sender
    (alone,) = talk.say(replace(SECOND, ranks=()), "one/1")
    assert isinstance(alone, UpdateRefused)
    (pulled,) = talk.say(PullNewer("run", 1, 1, (2,), (-1,)), "one/1")
    assert isinstance(pulled, PulledNewer) and pulled.shards == (2,) and pulled.error is None
    (strange,) = talk.say(PullNewer("run", 1, 1, (2,), (-1,)), "two/1")
    assert isinstance(strange, PulledNewer) and (strange.error or "").startswith("session: ")


@pytest.mark.parametrize(
    ("part", "word"),
    [
        (replace(SECOND, scale=2.0), "parts"),
        (replace(SECOND, samples=((0, 6),)), "parts"),
        (replace(SECOND, ranks=(0, 1, 2)), "parts"),
        (replace(SECOND, ranks=(0, 2)), "parts"),
        (replace(SECOND, shards=(0,), buffers=((1.0,) * 4,)), "parts"),
        (replace(SECOND, shards=(), versions=(), buffers=()), "parts"),
        (replace(SECOND, kind="factors", examples=(0,)), "parts"),
        (replace(SECOND, shards=(1,)), "shard"),
        (replace(SECOND, buffers=((1.0,),)), "length"),
        (replace(SECOND, buffers=((1.0, float("nan")),)), "finite"),
    ],
)
def test_a_part_that_fits_no_others_is_refused_and_the_whole_update_with_it(part: Update, word: str) -> None:
    talk = TalkOfRanks()
    talk.part(FIRST)
    (answer,) = talk.part(part)
    assert (
        isinstance(answer, UpdateRefused)
        and answer.reason.startswith(f"{word}: ")
        and not answer.is_retryable
    )
    assert talk.part(SECOND) == talk.part(FIRST) == [answer], "its number is used up"
    assert talk.drain() == [] and talk.weights == [0.0] * 6
    for each in (FIRST, SECOND):
        assert talk.part(replace(each, number=2)) == []
    assert len(talk.drain()) == 1


def test_parts_that_find_no_room_together_are_taken_once_there_is_some() -> None:
    talk = TalkOfRanks(room=QueueLimits(96, 96))
    talk.give(checkpoint=1)
    talk.push(marker(1, 1))
    behind = [replace(each, number=2, checkpoint=1) for each in (FIRST, SECOND)]
    assert [talk.part(each) for each in behind] == [[], []]
    last = [replace(each, number=3) for each in behind]
    assert talk.part(last[0]) == []
    (answer,) = talk.part(last[1])
    assert isinstance(answer, UpdateRefused) and answer.is_retryable and answer.reason.startswith("busy: ")
    talk.push(marker(2, 1))
    assert len(talk.drain()) == 1
    assert talk.part(last[0]) == [] and talk.updates.queued == 1, "the other part was kept"
    assert len(talk.drain()) == 1


# --- the first rank ---

WHOLE = PullNewer("run", 1, 1, (0, 1, 2), (3, -1, 5))
PARTS = {0: replace(WHOLE, shards=(0, 2), versions=(3, 5)), 1: replace(WHOLE, shards=(1,), versions=(-1,))}
ANSWERS = {0: PulledNewer(1, "a", 1, (2,), (6,), (b"two",)), 1: PulledNewer(1, "a", 1, (1,), (4,), ())}
TOLD = [Send("a", PARTS[0]), Send("one/1", PullPart("a", PARTS[1]))]


def ranks() -> RankFanout:
    found = RankFanout("one")
    found.enter({0: 0, 1: 1, 2: 0})
    return found


def test_a_pull_goes_to_the_ranks_that_have_its_shards_and_is_heard_as_one() -> None:
    first = ranks()
    assert first.send(Send("a", WHOLE)) == TOLD
    assert first.receive("one/1", PulledPart("a", ANSWERS[1])) is None
    assert first.send(Send("a", WHOLE)) == TOLD[:1], "who has answered is not told again"
    assert first.receive("one/1", PulledPart("a", ANSWERS[1])) is None
    heard = first.receive("a", ANSWERS[0])
    assert heard == PulledNewer(1, "a", 1, (1, 2), (4, 6), (RemoteBuffers(1), b"two"))
    assert first.receive("a", ANSWERS[0]) is None


def test_what_ranks_say_of_another_pull_is_passed_over() -> None:
    first = ranks()
    first.send(Send("a", WHOLE))
    first.send(Send("a", replace(WHOLE, number=2)))
    for pulled in (ANSWERS[0], replace(ANSWERS[0], number=2, session=2), replace(ANSWERS[0], error="no")):
        assert first.receive("a", pulled) is None
    for sender in ("two/1", "one", "a"):
        assert first.receive(sender, PulledPart("a", replace(ANSWERS[1], number=2))) is None
    assert first.receive("a", replace(ANSWERS[0], number=2)) is None
    assert first.receive("one/1", PulledPart("a", replace(ANSWERS[1], number=2))) is not None


def test_an_update_goes_in_parts_and_one_of_the_first_rank_alone_as_it_is() -> None:
    first = ranks()
    own = replace(GRADIENT, buffers=(b"zero", b"two"))
    assert first.send(Send("a", own)) == [Send("a", own)]
    assert first.send(Send("a", marker(1, 1))) == [Send("a", marker(1, 1))]
    update = replace(GRADIENT, shards=(0, 1), versions=(7, 8), buffers=(b"zero", RemoteBuffers(1, 5)))
    mine, other = first.send(Send("a", update))
    expected = replace(update, shards=(0,), versions=(7,), buffers=(b"zero",), ranks=(0, 1))
    assert mine == Send("a", expected)
    part = replace(expected, shards=(1,), versions=(8,), buffers=(), rank=1)
    assert other == Send("one/1", PushPart("a", 5, part))
    alone = replace(update, shards=(1,), versions=(8,), buffers=(RemoteBuffers(1, 5),))
    assert first.send(Send("a", alone)) == [Send("one/1", PushPart("a", 5, replace(part, ranks=(1,))))]


@pytest.mark.parametrize(("sender", "is_one"), [("r", True), ("r/2", True), ("r/x", False), ("r/", False)])
def test_a_rank_is_known_by_its_name(sender: str, is_one: bool) -> None:
    assert is_rank_of(sender, "r") is is_one
    assert not is_rank_of(sender, "r/1") and not is_rank_of("other/1", "r")


# --- another rank ---


def pushed(number: int, closing: int) -> PushPart:
    return PushPart("a", closing, replace(SECOND, number=number, buffers=()))


def test_a_rank_pushes_what_it_has_closed_and_waits_for_what_it_has_not() -> None:
    rank = ReplicaRank("one")
    assert rank.receive("one", pushed(1, 1)) == []
    (sent,) = rank.close_accumulation(1, {2: b"first"})
    assert sent == Send("a", replace(SECOND, number=1, buffers=(b"first",)))
    assert rank.receive("one", pushed(1, 1)) == [sent], "it was asked to send it again"
    assert rank.close_accumulation(2, {2: b"second"}) == [] and rank.receive("one", pushed(1, 1)) == [sent]
    rank.close_accumulation(3, {2: b"third"})
    assert rank.receive("one", pushed(1, 1)) == [], "its memory is that of the third"
    assert rank.receive("two", pushed(3, 3)) == [] and len(rank.receive("one", pushed(3, 3))) == 1


def test_a_rank_keeps_what_it_pulls_until_it_is_put_in_its_place() -> None:
    rank, pull = ReplicaRank("one"), replace(PARTS[1], number=4)
    assert rank.receive("two", PullPart("a", pull)) == []
    answer = PulledNewer(1, "a", 4, (1,), (4,), (b"numbers",))
    assert rank.receive("a", answer) == [], "nobody has asked"
    for _ in range(2):
        assert rank.receive("one", PullPart("a", pull)) == [Send("a", pull)]
    assert (
        rank.receive("a", replace(answer, number=3)) == rank.receive("a", replace(answer, error="no")) == []
    )
    assert rank.receive("b", answer) == []
    told = Send("one", PulledPart("a", replace(answer, buffers=())))
    assert rank.receive("a", answer) == [told]
    assert rank.receive("a", replace(answer, versions=(5,))) == [], "it came twice"
    assert rank.take_newer(1, {1: 4}) == {1: b"numbers"}
    with pytest.raises(KeyError):
        rank.take_newer(1, {1: 4})
