"""Assignment of batches to servers, and the order of their delivery."""

from __future__ import annotations

from collections import Counter

import pytest

from cotswold.dataservice.core.request_scheduler import RequestScheduler, RequestSettings
from cotswold.dataservice.core.server_queue import RequestQueue
from cotswold.wire import BatchPending, BatchRejected, BatchReply, BatchRequest, CancelRequests, Send

ASKING = RequestSettings(
    window=4, straggler_factor=3.0, straggler_seconds=0.2, retry_seconds=1.0, no_server_seconds=5.0
)

REFUSED = BatchRejected("a", 3, "")


def ask(number: int, samples: int = 2) -> BatchRequest:
    return BatchRequest(number, "", 0, samples, (b"",))


def made(server: str, number: int) -> BatchReply:
    return BatchReply(server, number, (1, 1, 1, 2), (2,), ())


def begun(*servers: str) -> RequestScheduler:
    found = RequestScheduler(ASKING, 0.0)
    assert found.set_servers(servers, 0.0) == []
    return found


def to(sends: list[Send]) -> list[str]:
    return [each.to for each in sends]


def ticked(requests: RequestScheduler, since: float, until: float) -> list[Send]:
    """Return the messages sent in this time, with ten ticks per second."""
    ticks = range(round(since * 10), round(until * 10) + 1)
    return [send for tick in ticks for send in requests.tick(tick / 10)]


def test_batches_are_handed_out_in_the_order_in_which_they_were_wanted() -> None:
    found = begun("a")
    for number in (1, 2, 3):
        found.submit(ask(number), 0.0)
    found.receive("a", made("a", 2), 0.1)
    assert found.take_next() is None
    found.receive("a", made("a", 1), 0.1)
    assert [found.take_next(), found.take_next(), found.take_next()] == [made("a", 1), made("a", 2), None]


def test_an_answer_that_comes_twice_is_dropped() -> None:
    found = begun("a")
    found.submit(ask(1), 0.0)
    for _ in range(2):
        found.receive("a", made("a", 1), 0.1)
    assert found.take_next() == made("a", 1)
    found.receive("a", made("a", 1), 0.1)
    assert (found.take_next(), found.answers, found.dropped) == (None, 1, 2)


def test_what_is_wanted_before_a_server_is_there_is_asked_of_the_first_that_comes() -> None:
    found = RequestScheduler(ASKING, 0.0)
    assert found.submit(ask(1), 0.0) == []
    assert to(found.set_servers(["a"], 1.0)) == ["a"]


def test_requests_go_where_they_are_answered_first() -> None:
    found = begun("a", "b")
    assert to(found.submit(ask(1), 0.0)) == ["a"]
    assert to(found.submit(ask(2), 0.0)) == ["b"], "a owes something"
    found.receive("a", made("a", 1), 0.1)
    found.receive("b", made("b", 2), 1.0)
    asked = [to(found.submit(ask(number), 1.0))[0] for number in (3, 4)]
    assert asked == ["a", "a"], "b is ten times as slow"


def test_a_server_that_was_slow_once_is_tried_again_after_a_while() -> None:
    found = begun("a", "b")
    assert to(found.submit(ask(1), 0.0)) == ["a"]
    assert to(found.submit(ask(2), 0.0)) == ["b"]
    found.receive("a", made("a", 1), 0.02)
    found.receive("b", made("b", 2), 0.1)
    found.take_next(), found.take_next()
    asked: dict[str, float] = {}
    for step in range(10_000):
        now = 0.2 + 0.001 * step
        pair = [found.next_number() + 2 for _ in range(2)]
        names = [to(found.submit(ask(each), now))[0] for each in pair]
        for name, each in zip(names, pair, strict=True):
            asked.setdefault(name, now)
            found.receive(name, made(name, each), now + 0.0005)
            found.take_next()
    assert asked["a"] == 0.2 and 5.0 < asked["b"] < 5.2, "fifty times the seconds that it took"
    assert found.servers["b"] == pytest.approx(0.00025)


def test_what_a_lost_server_owed_is_asked_of_another() -> None:
    found = begun("a", "b")
    found.submit(ask(1), 0.0)
    assert found.on_server_lost("a", 0.1) == [Send("b", ask(1))]
    assert found.on_server_lost("a", 0.1) == []


def test_a_late_request_is_asked_of_a_second_server_and_the_slower_one_hears_that_it_is_made() -> None:
    found = begun("a", "b")
    found.submit(ask(1), 0.0)
    assert ticked(found, 0.1, 1.0) == []
    assert to(ticked(found, 1.1, 1.2)) == ["b"]
    assert found.receive("a", made("a", 1), 1.3) == [Send("b", CancelRequests((1,)))]
    assert found.copies == 1


def usual(found: RequestScheduler) -> None:
    """Let two servers answer, each within 50 ms."""
    for each in (1, 2):
        found.submit(ask(each), 0.0)
    for name, each in (("a", 1), ("b", 2)):
        found.receive(name, made(name, each), 0.05)
        found.take_next()


def test_a_server_that_has_stopped_delays_once_and_not_whenever_others_have_answered_for_it() -> None:
    found, asked = begun("a", "b"), Counter[str]()
    usual(found)
    waits = []
    for step in range(3, 20):
        now = step / 4
        sends = found.submit(ask(step), now)
        for tick in range(24):
            sends += found.tick(now + tick / 100)
            if "b" in to([each for each in sends if isinstance(each.message, BatchRequest)]):
                waits.append(tick)
                found.receive("b", made("b", step), now + tick / 100)
                assert found.take_next() == made("b", step)
                break
        asked.update(to([each for each in sends if isinstance(each.message, BatchRequest)]))
    assert asked["b"] == 17 and asked["a"] == 1
    assert [each for each in waits if each] == [21], "once it is late"
    assert found.receive("a", made("a", 3), 5.0) == []
    assert ["a"] in [to(found.submit(ask(each), 5.0)) for each in (20, 21, 22)], "it lives"
    assert found.servers["a"] == pytest.approx(0.025 * (0.7 + 0.3 * 10)), (
        "it is not as slow as it stood still"
    )


@pytest.mark.parametrize(("is_taken", "answer"), [(True, None), (True, REFUSED), (False, REFUSED)])
def test_what_a_stopped_server_owes_is_not_remembered_for_ever(
    is_taken: bool, answer: BatchRejected | None
) -> None:
    found = begun("a", "b")
    usual(found)
    assert to(found.submit(ask(3), 0.5)) == ["a"]
    assert to(ticked(found, 0.6, 0.8)) == ["b"]
    found.receive("b", made("b", 3), 0.8)
    if is_taken:
        found.take_next()
    if answer is not None:
        found.receive("a", answer, 0.9)
    then = 1.0 if answer else 0.6 + ASKING.no_server_seconds
    assert ["a"] in [to(found.submit(ask(each), then)) for each in (4, 5)]


def test_where_there_is_no_other_server_a_request_is_sent_again() -> None:
    found = begun("a")
    found.submit(ask(1), 0.0)
    assert ticked(found, 0.1, 1.0) == []
    assert ticked(found, 1.1, 1.2) == [Send("a", ask(1))]
    assert found.resent == 1


def test_a_trainer_that_stood_still_takes_nobody_for_late() -> None:
    found = begun("a", "b")
    found.tick(0.0)
    found.submit(ask(1), 0.0)
    assert found.tick(100.0) == []
    assert found.failure(100.0) == ""


def test_what_a_full_server_turns_away_is_asked_of_another_one_or_later() -> None:
    found = begun("a", "b")
    found.submit(ask(1), 0.0)
    assert to(found.receive("a", BatchRejected("a", 1, ""), 0.1)) == ["b"]
    assert to(found.receive("b", BatchRejected("b", 1, ""), 0.1)) == []
    assert to(ticked(found, 0.1, 0.2)) == [], "it is left in peace for a while"
    assert to(ticked(found, 0.3, 0.4)) == ["a"]
    assert to(found.receive("a", BatchRejected("a", 1, ""), 0.4)) == ["b"]


@pytest.mark.parametrize("message", [BatchRejected("a", 1, ""), BatchPending("a", 1), BatchPending("a", 7)])
def test_servers_that_say_anything_are_not_missed_unless_they_make_nothing_for_ten_times_as_long(
    message: BatchRejected | BatchPending,
) -> None:
    found = begun("a")
    found.submit(ask(1), 0.0)
    for tenth in range(500):
        found.tick(tenth / 10)
        found.receive("a", message, tenth / 10)
        assert found.failure(tenth / 10) == ""
    found.tick(50.1)
    found.receive("a", message, 50.1)
    assert found.failure(50.1) == "a sent no batches for 50 s"


def test_a_slow_server_is_asked_again_before_it_is_missed() -> None:
    found, server = begun("s"), RequestQueue("s")
    server.receive("t", ask(1))
    found.submit(ask(1), 0.0)
    job = server.next()
    for tenth in range(300):
        now = tenth / 10
        for send in found.tick(now):
            assert isinstance(send.message, BatchRequest)
            for each in server.receive("t", send.message):
                assert isinstance(each.message, BatchPending)
                found.receive("s", each.message, now)
        assert found.failure(now) == ""
    assert job is not None and server.finish(job)
    found.receive("s", made("s", 1), 30.0)
    assert found.take_next() == made("s", 1)
    found.submit(ask(2), 30.0)
    assert ticked(found, 30.1, 34.0), "however long the first has taken"


@pytest.mark.parametrize(
    ("shape", "batches"),
    [((), 1), ((1, 1, 1, 3), 1), ((1, 1, 2), 1), ((2, 1, 1, 1), 1), ((1, 1, 1, 2), 2), ((1, 1, 1, 1), 2)],
)
def test_a_batch_that_was_not_asked_for_is_asked_of_another_server(
    shape: tuple[int, ...], batches: int
) -> None:
    found = begun("a", "b")
    found.submit(ask(1), 0.0)
    odd = BatchReply("a", 1, shape, (2 // batches,), (), batches)
    assert to(found.receive("a", odd, 0.1)) == ["b"]
    found.receive("b", BatchReply("b", 1, (1, 1, 1, 2), (), ()), 0.1)
    assert found.take_next() is None
    assert "b cannot make a batch: it sent samples (1, 1, 1, 1, 2) and targets (1,)" in found.failure(0.1)


def test_what_no_server_can_make_is_an_error() -> None:
    found = begun("a", "b")
    found.submit(ask(1), 0.0)
    found.receive("a", BatchRejected("a", 1, "a damaged chunk"), 0.1)
    assert found.failure(0.1) == ""
    found.receive("b", BatchRejected("b", 1, "a damaged chunk"), 0.2)
    assert found.failure(0.2) == "b cannot make a batch: a damaged chunk"


@pytest.mark.parametrize("is_roster", [False, True])
def test_what_whoever_is_left_cannot_make_is_an_error_at_once(is_roster: bool) -> None:
    found = begun("a", "b")
    found.submit(ask(1), 0.0)
    found.receive("a", BatchRejected("a", 1, "a damaged chunk"), 0.1)
    if is_roster:
        found.set_servers(["a"], 0.2)
    else:
        found.on_server_lost("b", 0.2)
    assert found.failure(0.2) == "a cannot make a batch: a damaged chunk"
    assert to(found.set_servers(["a", "c"], 0.3)) == ["c"]
    assert found.failure(0.3) == "", "c may make it"


def test_what_was_refused_and_is_not_wanted_any_more_is_no_error() -> None:
    found = begun("a")
    found.submit(ask(1), 0.0)
    found.receive("a", BatchRejected("a", 1, "a damaged chunk"), 0.1)
    found.cancel()
    assert found.failure(0.2) == ""


@pytest.mark.parametrize(
    ("servers", "why"),
    [((), "no data server has been connected for 5 s"), (("a", "b"), "a and b have not answered for 5 s")],
)
def test_nobody_who_answers_is_an_error_in_time(servers: tuple[str, ...], why: str) -> None:
    found = begun(*servers)
    found.submit(ask(1), 0.0)
    for tenth in range(51):
        found.tick(tenth / 10)
    assert found.failure(5.0) == ""
    assert found.failure(5.1) == why


def test_where_nothing_is_wanted_nobody_is_missed() -> None:
    assert begun().failure(1000.0) == ""


def test_no_more_is_asked_ahead_than_the_window_has_room_for() -> None:
    found = begun("a")
    for number in range(1, 5):
        found.submit(ask(number), 0.0)
    assert found.room == 0
    found.receive("a", made("a", 1), 0.1)
    assert found.room == 0, "it is made, and not handed out"
    found.take_next()
    assert found.room == 1


# --- the other side ---


def test_trainers_have_turns_at_a_server() -> None:
    server = RequestQueue("s")
    for sender, number in (("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)):
        server.receive(sender, ask(number))
    jobs = [server.next() for _ in range(6)]
    assert [job and (job.trainer, job.request.number) for job in jobs] == [
        *(("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3)),
        None,
    ]


def test_what_is_asked_twice_is_made_once_and_made_again_once_it_was_answered() -> None:
    server = RequestQueue("s")
    assert server.receive("a", ask(1)) == []
    assert server.receive("a", ask(1)) == [Send("a", BatchPending("s", 1))]
    job = server.next()
    assert server.receive("a", ask(1)) == [Send("a", BatchPending("s", 1))]
    assert job is not None and server.next() is None
    assert server.finish(job)
    server.receive("a", ask(1))
    assert server.next() == job


def test_what_is_cancelled_is_not_made_or_not_answered_unless_it_is_asked_again() -> None:
    server = RequestQueue("s")
    for number in (1, 2, 3):
        server.receive("a", ask(number))
    jobs = [server.next(), server.next()]
    server.receive("a", CancelRequests((1, 2, 3)))
    assert (server.queued, server.next()) == (0, None)
    server.receive("a", ask(2))
    assert [job and server.finish(job) for job in jobs] == [False, True]
    assert server.trainers == ()


def test_a_trainer_that_is_lost_leaves_nothing_behind() -> None:
    server = RequestQueue("s")
    server.receive("a", ask(1))
    job = server.next()
    server.receive("a", ask(2))
    server.on_trainer_lost("a")
    assert job is not None and not server.finish(job)
    assert (server.queued, server.trainers, server.next()) == (0, (), None)


def test_a_server_turns_away_what_it_has_no_room_for() -> None:
    server = RequestQueue("s", room=1)
    assert server.receive("a", ask(1)) == []
    assert server.receive("a", ask(2)) == [Send("a", BatchRejected("s", 2, ""))]
    assert server.receive("b", ask(1)) == [], "each trainer has its own room"
