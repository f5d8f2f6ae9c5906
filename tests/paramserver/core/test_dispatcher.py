"""The coordinator of replicas and a replica in isolation: messages and their order."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest

from cotswold.paramserver.core.dispatcher import Dispatcher
from cotswold.paramserver.core.dispatcher_state import DispatcherState
from cotswold.paramserver.core.replica import Replica
from cotswold.paramserver.core.replica_session import Pace
from cotswold.paramserver.core.settings import DispatcherCounters, DispatcherSettings
from cotswold.paramserver.core.update_sequence import ServerUpdate
from cotswold.wire import (
    Applied,
    CoordinatorState,
    CoordinatorStateAck,
    Join,
    Leave,
    Message,
    PulledNewer,
    ReplicaHeartbeat,
    ReplicaInstructions,
    Send,
    SessionExpired,
    SessionOpened,
    Shard,
    Shutdown,
    Update,
)

SHARDS = [Shard(0, "a", 0, 2, "", 0), Shard(1, "b", 2, 4, "", 0)]
JOIN = Join("one", 0, "", 10, 4)
ADMITTED = SessionOpened("one", 0, 1, "run", tuple(SHARDS), (("a", ""), ("b", "")), 0.5, 2.0, "{}")


class Talk:
    """The two servers' and the replicas' side."""

    def __init__(self, **rules: object) -> None:
        settings = DispatcherSettings("run", 10, 4, 1, 0.5, 4, 4, **rules)  # type: ignore[arg-type]  # fields of Dispatch
        self.dispatcher, self.now = Dispatcher(settings, SHARDS, [("a", ""), ("b", "")], 0.0), 0.0

    def is_in(self, state: DispatcherState) -> bool:
        return self.dispatcher.state is state

    def say(
        self, sender: str, message: Join | ReplicaHeartbeat | Leave | CoordinatorStateAck
    ) -> list[Message]:
        return [send.message for send in self.dispatcher.receive(sender, message, self.now)]

    def tick(self, seconds: float = 1.0) -> list[Message]:
        self.now += seconds
        return [send.message for send in self.dispatcher.tick(self.now)]

    def obey(self, applied: tuple[tuple[int, int], ...] = (), frozen: int = 0) -> list[Message]:
        """Answer the next order from both servers: session 1 has this applied everywhere."""
        order = next(each for each in self.tick() if isinstance(each, CoordinatorState))
        answers = [CoordinatorStateAck(order.number, name, ((1, applied, ()),), frozen, 0) for name in "ab"]
        assert self.say("a", answers[0]) == []
        return self.say("b", answers[1])


def test_a_replica_is_admitted_once_all_servers_know_of_it() -> None:
    talk = Talk()
    assert talk.say("one", JOIN) == []
    (admitted,) = talk.obey()
    assert isinstance(admitted, SessionOpened) and admitted.session == 1
    assert talk.say("one", JOIN) == [admitted]


def test_samples_are_handed_out_again_until_the_replica_has_them() -> None:
    talk = Talk()
    talk.say("one", JOIN)
    assert talk.say("one", ReplicaHeartbeat(1, 0, 0)) == []  # not admitted yet
    talk.obey()
    first = ReplicaInstructions(1, ((1, 0, 4),), 1, 0.5, 0)
    assert talk.say("one", ReplicaHeartbeat(1, 0, 0)) == [first]
    assert talk.say("one", ReplicaHeartbeat(1, 0, 0)) == [first]
    assert talk.say("one", ReplicaHeartbeat(1, 1, 4)) == [
        ReplicaInstructions(1, (), 1, 0.5, 0)
    ]  # it has enough
    assert talk.say("one", ReplicaHeartbeat(1, 1, 2)) == [ReplicaInstructions(1, ((2, 4, 8),), 1, 0.5, 0)]


def test_a_rate_and_a_checkpoint_are_told_once_all_servers_know_of_them() -> None:
    talk = Talk()
    talk.say("one", JOIN)
    talk.obey()
    assert (talk.dispatcher.set_rate(0.25), talk.dispatcher.begin_checkpoint()) == (2, 1)
    assert talk.say("one", ReplicaHeartbeat(1, 0, 9)) == [ReplicaInstructions(1, (), 1, 0.5, 0)]
    talk.obey()
    assert talk.say("one", ReplicaHeartbeat(1, 0, 9)) == [ReplicaInstructions(1, (), 2, 0.25, 1)]
    assert talk.dispatcher.is_freezing
    talk.obey(frozen=1)
    assert not talk.dispatcher.is_freezing


def test_training_ends_once_nothing_is_open_and_then_all_may_go() -> None:
    talk = Talk(fraction=0.4)
    talk.say("one", JOIN)
    talk.obey()
    talk.say("one", ReplicaHeartbeat(1, 0, 0))
    talk.say("one", ReplicaHeartbeat(1, 1, 0))
    talk.obey(((0, 4),))
    assert talk.is_in(DispatcherState.DRAINING)
    talk.obey(((0, 8),))
    assert talk.is_in(DispatcherState.FINISHED)
    assert talk.say("one", ReplicaHeartbeat(1, 2, 0)) == [Shutdown(1)]
    assert talk.say("two", Join("two", 0, "", 10, 4)) == [Shutdown(0)]


def test_who_waits_for_samples_has_those_of_the_next_epoch_at_once() -> None:
    talk = Talk(fraction=1.0)
    talk.dispatcher.rules = replace(talk.dispatcher.rules, epochs=2)
    talk.say("one", JOIN)
    talk.obey()
    for hand in range(3):
        talk.say("one", ReplicaHeartbeat(1, hand, 0))
    assert talk.tick(0.03) == []
    assert talk.say("one", ReplicaHeartbeat(1, 3, 0)) == [ReplicaInstructions(1, (), 1, 0.5, 0)], (
        "there are none"
    )
    assert any(isinstance(each, CoordinatorState) for each in talk.tick(0.03)), "servers are asked more often"
    order = talk.dispatcher._newest_state
    answers = [CoordinatorStateAck(order.number, name, ((1, ((0, 10),), ()),), 0, 0) for name in "ab"]
    assert talk.say("a", answers[0]) == []
    assert talk.say("b", answers[1]) == [ReplicaInstructions(1, ((4, 10, 14),), 1, 0.5, 0)], (
        "it did not ask again"
    )


def test_what_one_had_who_died_after_servers_were_asked_is_handed_out_again_before_its_epoch_ends() -> None:
    talk = Talk(fraction=1.0, of="replicas")
    talk.dispatcher.rules = replace(talk.dispatcher.rules, epochs=2)
    talk.say("one", JOIN)
    talk.obey()
    talk.say("two", replace(JOIN, name="two"))
    talk.obey()
    talk.say("two", ReplicaHeartbeat(2, 0, 0))  # 0 to 4
    talk.say("one", ReplicaHeartbeat(1, 0, 0))
    talk.say("one", ReplicaHeartbeat(1, 1, 0))
    order = next(each for each in talk.tick() if isinstance(each, CoordinatorState))
    talk.dispatcher.on_exit("two", "killed")
    for name in "ab":
        talk.say(name, CoordinatorStateAck(order.number, name, ((1, ((4, 10),), ()), (2, (), ())), 0, 0))
    ledger = talk.dispatcher.ledger
    assert (ledger.epoch, ledger.open_of(2)) == (0, ((0, 4),))
    talk.obey(((4, 10),))
    assert (ledger.epoch, ledger.free, ledger.accounts[0].left_out) == (0, 4, 0)


def test_what_numbers_a_run_before_has_given_are_not_given_again() -> None:
    talk = Talk()
    talk.say("one", JOIN)
    talk.dispatcher.set_rate(0.25)
    counters = talk.dispatcher.counters
    assert counters == DispatcherCounters(1, ((1, 0.5), (2, 0.25)))
    later = Dispatcher(talk.dispatcher.rules, SHARDS, [("a", ""), ("b", "")], 0.0, None, counters)
    later.receive("one", JOIN, 0.0)
    assert later.members.session("one") == 2
    assert later.set_rate(0.125) == 3


def test_who_leaves_goes_once_what_it_has_counts() -> None:
    talk = Talk()
    talk.say("one", JOIN)
    talk.obey()
    talk.say("one", ReplicaHeartbeat(1, 0, 0))
    assert talk.say("one", Leave(1, "a spot notice")) == []
    assert talk.say("one", ReplicaHeartbeat(1, 1, 0)) == [ReplicaInstructions(1, (), 1, 0.5, 0)]
    talk.obey(((0, 4),))
    assert talk.say("one", Leave(1, "a spot notice")) == [Shutdown(1)]


def test_who_is_silent_is_lost_and_may_join_again() -> None:
    talk = Talk()
    talk.say("one", JOIN)
    talk.obey()
    assert SessionExpired(1) in talk.tick(60)
    assert talk.say("one", ReplicaHeartbeat(1, 0, 0)) == [SessionExpired(1)]
    assert talk.say("one", ReplicaHeartbeat(1, 0, 0)) == [SessionExpired(1)]
    assert talk.dispatcher.silent_servers(talk.now + 5, 5) == ["a", "b"]


def test_who_asks_to_join_is_not_silent() -> None:
    talk = Talk()
    talk.say("one", JOIN)
    for _ in range(8):
        assert SessionExpired(1) not in talk.tick(5)
        talk.say("one", JOIN)


def test_whose_session_ended_before_it_was_told_of_it_joins_anew() -> None:
    talk, replica = Talk(), Replica(JOIN, Pace(2))
    talk.say("one", JOIN)
    assert SessionExpired(1) in talk.tick(60)
    assert replica.receive("coordinator", SessionExpired(1), 60.0) == []
    (again,) = talk.say("one", JOIN)
    assert again == SessionExpired(0)
    ((_, join),) = ((send.to, send.message) for send in replica.receive("coordinator", again, 60.0))
    assert isinstance(join, Join) and join.attempt == 1
    talk.say("one", join)
    talk.now += 2
    talk.obey()
    assert any(isinstance(each, SessionOpened) and each.session == 2 for each in talk.obey())


@pytest.mark.parametrize("join", [Join("one", 0, "", 11, 4), Join("one", 0, "", 10, 5)])
def test_who_has_another_data_set_or_network_is_refused(join: Join) -> None:
    talk = Talk()
    assert talk.say("one", join) == [Shutdown(0)]
    assert [event.kind for event in talk.dispatcher.take_events()] == ["refused"]


def test_without_overlap_each_push_is_computed_from_a_pull_of_its_own() -> None:
    assert Pace(1, n_push=2, overlap=False).n_fetch == 1
    with pytest.raises(ValueError, match="n_fetch must be at most n_push"):
        Pace(1, n_fetch=2, overlap=False)


def steps_of_pushes(stretch: int, answers: Callable[[int], bool]) -> list[int]:
    """Return the steps that each push sums, out of 12, if pushes are answered during some of the steps."""
    replica = Replica(JOIN, Pace(1, stretch=stretch))
    replica.receive("coordinator", ADMITTED, 0.0)
    replica.receive("coordinator", ReplicaInstructions(1, ((1, 0, 12),), 1, 0.5, 0), 0.0)
    for number, name in enumerate("ab"):
        replica.receive(name, PulledNewer(1, name, 1, (number,), (0,), (b"",)), 0.0)
    parts = {name: ServerUpdate("gradient", (number,), (), ()) for number, name in enumerate("ab")}
    sizes = list[int]()

    def note(sends: list[Send]) -> None:
        for send in sends:
            if isinstance(send.message, Update) and send.to == "a":
                sizes.append(sum(stop - start for start, stop in send.message.samples))

    for step in range(12):
        task = replica.task()
        if answers(step):
            for place, name in enumerate("ab"):
                note(replica.receive(name, Applied(1, name, len(sizes), (place,), (1,), 0), 0.0))
        if task is not None:
            note(replica.finish_step(parts if task.closes and not replica.can_extend else None, 0.0))
    return sizes


def test_while_a_push_is_not_answered_the_next_grows_up_to_a_bound() -> None:
    assert steps_of_pushes(1, lambda step: True) == steps_of_pushes(4, lambda step: True) == [1] * 12
    assert steps_of_pushes(1, lambda step: step == 9) == [1, 1], "the next waits, and so do steps"
    assert steps_of_pushes(4, lambda step: step == 9) == [1, 4]
    assert steps_of_pushes(4, lambda step: step == 3) == [1, 3], "it goes once it may, and the next grows"


def test_while_it_is_paused_nobody_is_handed_samples() -> None:
    talk = Talk()
    talk.say("one", JOIN)
    talk.obey()
    talk.dispatcher.is_paused = True
    assert talk.say("one", ReplicaHeartbeat(1, 0, 0)) == [ReplicaInstructions(1, (), 1, 0.5, 0)]
    talk.dispatcher.is_paused = False
    assert talk.say("one", ReplicaHeartbeat(1, 0, 0)) == [ReplicaInstructions(1, ((1, 0, 4),), 1, 0.5, 0)]


def test_what_is_lost_after_the_last_epoch_is_handed_out_again_and_then_it_ends() -> None:
    talk = Talk(fraction=1.0)
    talk.say("one", JOIN)
    talk.obey()
    for hand in range(3):
        talk.say("one", ReplicaHeartbeat(1, hand, 0))

    def answer(life: int, session: int, applied: tuple[tuple[int, int], ...], saved: int) -> list[Message]:
        order = next(each for each in talk.tick() if isinstance(each, CoordinatorState))
        past = ((1, ((0, 6),)),) if session != 1 else ()
        for name, own, has in (("a", life, applied), ("b", 0, ((0, 10),) if session == 1 else applied)):
            samples = ((session, has, ()),)
            ordered = CoordinatorStateAck(
                order.number, name, samples, 0, 0, earlier_sessions=past, incarnation=own, durable_state=saved
            )
            found = talk.say(name, ordered)
        return found

    answer(0, 1, ((0, 10),), saved=0)
    assert talk.is_in(DispatcherState.DRAINING), "the disks have not what counts"
    assert SessionExpired(1) in answer(3, 1, ((0, 6),), saved=0)
    assert talk.is_in(DispatcherState.RUNNING)
    (lost,) = [each for each in talk.dispatcher.take_events() if each.kind == "samples_lost"]
    assert lost.sentence.startswith("4 samples that counted") and lost.places == ((6, 10),)
    talk.say("one", replace(JOIN, attempt=1))
    answer(3, 2, (), saved=0)
    assert talk.say("one", ReplicaHeartbeat(2, 0, 0)) == [
        ReplicaInstructions(2, ((1, 6, 10),), 1, 0.5, 0, (1,))
    ]
    answer(3, 2, ((6, 10),), saved=10)
    assert talk.is_in(DispatcherState.FINISHED)
    assert vars(talk.dispatcher.ledger.total) == {
        "handed_out": 14,
        "counted": 10,
        "torn": 0,
        "refused": 0,
        "lost": 4,
        "left_out": 0,
    }


def torn_apart(**rules: object) -> Talk:
    """Return a run whose session 1 died with four samples: server a has three and server b has two."""
    talk = Talk(fraction=1.0, **rules)
    talk.say("one", JOIN)
    talk.obey()
    talk.say("one", ReplicaHeartbeat(1, 0, 0))
    talk.dispatcher.on_exit("one", "killed by signal 9")
    talk.say("one", replace(JOIN, attempt=1))
    order = next(each for each in talk.tick() if isinstance(each, CoordinatorState))
    for name, applied in (("a", ((0, 3),)), ("b", ((0, 2),))):
        talk.say(name, CoordinatorStateAck(order.number, name, ((1, applied, ()), (2, (), ())), 0, 0))
    return talk


def answered(talk: Talk, applied: tuple[tuple[int, int], ...], frozen: int = 0) -> CoordinatorState:
    """Answer the next order from both servers: session 2 has this applied everywhere."""
    order = next(each for each in talk.tick() if isinstance(each, CoordinatorState))
    for name in "ab":
        talk.say(name, CoordinatorStateAck(order.number, name, ((2, applied, ()),), frozen, 0))
    return order


def test_samples_that_one_server_lacks_are_a_separate_assignment() -> None:
    talk = torn_apart()
    assert talk.say("one", ReplicaHeartbeat(2, 0, 0)) == [
        ReplicaInstructions(2, ((1, 2, 3),), 1, 0.5, 0, (1,))
    ]
    assert talk.say("one", ReplicaHeartbeat(2, 1, 0)) == [ReplicaInstructions(2, ((2, 3, 7),), 1, 0.5, 0)]
    answered(talk, ((2, 7),))
    total = talk.dispatcher.ledger.total
    assert (total.counted, total.torn, total.lost) == (7, 0, 2)


def test_while_it_is_paused_samples_that_one_server_lacks_are_handed_out_alone() -> None:
    talk = torn_apart()
    talk.dispatcher.is_paused = True
    assert talk.say("one", ReplicaHeartbeat(2, 0, 0)) == [
        ReplicaInstructions(2, ((1, 2, 3),), 1, 0.5, 0, (1,))
    ]
    assert talk.say("one", ReplicaHeartbeat(2, 1, 0)) == [ReplicaInstructions(2, (), 1, 0.5, 0)]


def test_no_checkpoint_is_told_of_while_one_server_lacks_what_another_has() -> None:
    talk = torn_apart()
    talk.dispatcher.begin_checkpoint()
    talk.say("one", ReplicaHeartbeat(2, 0, 0))
    assert answered(talk, ()).checkpoint == 0
    assert answered(talk, ((2, 3),)).checkpoint == 0, "servers say with this answer that both have it"
    assert answered(talk, ((2, 3),)).checkpoint == 1


def test_a_checkpoint_whose_states_differ_is_begun_again_and_at_last_is_torn() -> None:
    talk = Talk(fraction=1.0)
    talk.say("one", JOIN)
    talk.obey()
    talk.say("one", ReplicaHeartbeat(1, 0, 0))
    talk.dispatcher.begin_checkpoint()
    assert talk.obey() == []
    talk.dispatcher.on_exit("one", "killed by signal 9")
    order = next(each for each in talk.tick() if isinstance(each, CoordinatorState))
    for name, applied in (("a", ((0, 1),)), ("b", ())):
        has = ((1, applied, ()),)
        talk.say(name, CoordinatorStateAck(order.number, name, has, 1, 0, checkpoint_samples=has))
    assert talk.dispatcher.frozen_ledger is None and talk.dispatcher.is_freezing
    assert (talk.dispatcher.checkpoint, talk.dispatcher.released_checkpoint) == (2, 1)
    again = deepcopy(talk.dispatcher.ledger)
    assert again.divided == ((0, 1),)
    for _ in range(4):
        talk.dispatcher._finish_checkpoint(again)
    assert talk.dispatcher.frozen_ledger is None
    talk.dispatcher._finish_checkpoint(again)
    kept = talk.dispatcher.take_checkpoint()
    assert (kept.total.torn, kept.divided, kept.free) == (1, (), 9)


def test_a_push_has_samples_of_one_exclusive_assignment_or_of_none() -> None:
    replica = Replica(JOIN, Pace(2, n_push=8, stretch=4))
    replica.receive("coordinator", ADMITTED, 0.0)
    for server, shard in (("a", 0), ("b", 1)):
        replica.receive(server, PulledNewer(1, server, 1, (shard,), (0,), ((0.0, 0.0),)), 0.0)
    hands = ((1, 0, 4), (2, 4, 6), (3, 6, 9), (4, 9, 13), (5, 13, 14))
    replica.receive("coordinator", ReplicaInstructions(1, hands, 1, 0.5, 0, (2, 3)), 0.0)
    pushed = []
    while (task := replica.task()) is not None:
        parts = None
        if task.closes and not replica.can_extend:
            parts = {name: ServerUpdate("gradient", (number,), (), ((),)) for number, name in enumerate("ab")}
        for send in replica.finish_step(parts, 0.0):
            if isinstance(send.message, Update) and send.to == "a":
                pushed.append(send.message.samples)
        for name, shard in (("a", 0), ("b", 1)):
            replica.receive(name, Applied(1, name, len(pushed), (shard,), (len(pushed),), 0), 0.0)
    assert pushed == [((0, 4),), ((4, 6),), ((6, 9),), ((9, 14),)]
