"""A parameter server in isolation: each message, repeated, late and malformed."""

from __future__ import annotations

import pytest

from cotswold.optim.vectors.base import Combine, Command, Dot, Drop, Multiply
from cotswold.shards.core.shard_server import PENDING, ShardServer
from cotswold.simulate.protocols.lists import ListArithmetic
from cotswold.wire import (
    COORDINATOR,
    AcceptSums,
    Close,
    Message,
    Node,
    Open,
    Pull,
    Pulled,
    Push,
    PushAck,
    PushRejected,
    Round,
    RoundReply,
    Shard,
    SumName,
    ToServer,
    Write,
)

SHARDS = [Shard(0, "a", 0, 2, "", 0), Shard(1, "b", 2, 3, "", 0), Shard(2, "a", 3, 6, "", 0)]


class Talk:
    """The coordinator's and a worker's side."""

    def __init__(self, *, tree: bool = False) -> None:
        self.server = ShardServer("a", SHARDS, ListArithmetic())
        self.number, self.tree = 0, tree
        self.say(Write(1, "x", (0, 2), ((1.0, 2.0), (3.0, 4.0, 5.0))))

    def say(self, message: ToServer, sender: str = COORDINATOR) -> list[Message]:
        return [send.message for send in self.server.receive(sender, message)]

    def round(self, *commands: Command, close: Close | None = None, open: Open | None = None) -> RoundReply:
        self.number += 1
        answer = self.say(Round(self.number, close, commands, open, None))[0]
        assert isinstance(answer, RoundReply)
        return answer

    def open(self, evaluation: int) -> None:
        assert self.round(open=Open(evaluation, "x", gradient=True, tree=self.tree)).error is None

    def push(
        self, evaluation: int, number: int, value: float, session: int = 1, node: Node | None = None
    ) -> Message:
        portions = (
            () if node is None else tuple(range(node.index << node.level, (node.index + 1) << node.level))
        )
        buffers = ((value,) * 2, (value,) * 3)
        return self.say(Push(session, evaluation, number, node, portions, (0, 2), buffers), "worker")[0]

    def vector(self, name: str) -> list[float] | None:
        pulled = self.say(Pull(0, 0, name, (0, 2)), "anybody")[0]
        assert isinstance(pulled, Pulled)
        return None if pulled.error else [each for buffer in pulled.buffers for each in buffer]  # type: ignore[attr-defined]  # tuples


def test_commands_run_in_their_order_and_dots_answer_by_shard() -> None:
    talk = Talk()
    answer = talk.round(
        Combine("y", ((2.0, "x"),)),
        Multiply("y", "y", "x"),
        Dot("x", "y"),
        Combine("z", ()),
        Dot("y", "y"),
        Drop("x"),
    )
    assert answer.shards == (0, 2)
    assert answer.dots == ((2 + 16.0, 4 + 64.0), (54 + 128 + 250.0, 18.0**2 + 32.0**2 + 50.0**2))
    assert talk.vector("z") == [0.0] * 5
    assert talk.vector("x") is None


def test_a_round_is_done_once_however_often_it_comes() -> None:
    talk = Talk()
    double = Round(1, None, (Combine("x", ((2.0, "x"),)), Dot("x", "x")), None, None)
    assert talk.say(double) == talk.say(double)
    assert talk.vector("x") == [2.0, 4.0, 6.0, 8.0, 10.0]
    talk.number = 1
    talk.round()
    assert talk.say(double) == []  # an old one that comes late


def test_a_round_that_names_no_vector_does_nothing_and_says_so() -> None:
    talk = Talk()
    answer = talk.round(Combine("x", ((2.0, "x"),)), Combine("y", ((1.0, "nothing"),)))
    assert answer.error == "unknown vector 'nothing'"
    assert talk.vector("x") == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_sum_counts_when_it_is_accepted_and_not_otherwise() -> None:
    talk = Talk()
    talk.open(1)
    for number, value in ((1, 1.0), (2, 10.0), (3, 100.0)):
        assert talk.push(1, number, value) == PushAck(1, 1, number, "a")
    talk.say(AcceptSums(1, 0, (SumName(1, 3),), ()))
    talk.round(close=Close(1, (SumName(1, 3), SumName(1, 1)), 0.5, "g"))
    assert talk.vector("g") == [50.5] * 5
    assert talk.server.pending == 0


def test_a_push_that_comes_again_counts_once_even_when_it_was_accepted() -> None:
    talk = Talk()
    talk.open(1)
    talk.push(1, 1, 1.0)
    talk.say(AcceptSums(1, 0, (SumName(1, 1),), ()))
    assert talk.push(1, 1, 1.0) == PushAck(1, 1, 1, "a")
    talk.round(close=Close(1, (SumName(1, 1),), 1.0, "g"))
    assert talk.vector("g") == [1.0] * 5


def test_acceptances_that_overtake_each_other_wait_for_the_close() -> None:
    talk = Talk()
    talk.open(1)
    for number in (1, 2):
        talk.push(1, number, float(number))
    talk.say(AcceptSums(1, 1, (SumName(1, 2),), (1,)))  # the one before it has not come
    assert talk.server.pending == 2
    talk.round(close=Close(1, (SumName(1, 1), SumName(1, 2)), 1.0, "g"))
    assert talk.vector("g") == [3.0] * 5


def test_a_session_that_ended_pushes_no_more() -> None:
    talk = Talk()
    talk.open(1)
    talk.push(1, 1, 1.0)
    talk.say(AcceptSums(1, 0, (), (1,)))
    assert talk.server.pending == 0
    refused = talk.push(1, 2, 1.0)
    assert isinstance(refused, PushRejected)
    assert "session 1 is over" in refused.reason


@pytest.mark.parametrize("tree", [False, True])
def test_a_sum_that_does_not_fit_is_refused_with_the_reason(tree: bool) -> None:
    talk = Talk(tree=tree)
    before = talk.push(1, 1, 1.0)
    talk.open(1)
    node = Node(0, 0) if tree else None
    wrong = [
        Push(1, 1, 1, None if tree else Node(0, 0), (0,), (0, 2), ((1.0,) * 2, (1.0,) * 3)),
        Push(1, 1, 2, node, (0,), (0,), ((1.0,) * 2,)),
        Push(1, 1, 3, node, (0,), (0, 2), ((1.0,) * 3, (1.0,) * 3)),
        Push(1, 1, 4, node, (0,), (0, 2), (None, "text")),
    ]
    answers = [before, *(talk.say(push, "worker")[0] for push in wrong)]
    reasons = [answer.reason for answer in answers if isinstance(answer, PushRejected)]
    assert len(reasons) == 5
    assert "evaluation 1 is not open" in reasons[0]
    assert talk.server.pending == 0


def test_pending_sums_are_bounded() -> None:
    talk = Talk()
    talk.open(1)
    answers = [talk.push(1, number, 1.0) for number in range(PENDING + 1)]
    assert sum(isinstance(each, PushAck) for each in answers) == PENDING
    assert isinstance(talk.push(1, 999, 1.0, session=2), PushAck)  # others are not disturbed


def test_a_pull_waits_for_its_evaluation_and_is_told_when_that_is_over() -> None:
    talk = Talk()
    pull = Pull(4, 1, "x", (0,))
    assert talk.say(pull, "worker") == []
    sends = talk.server.receive(
        COORDINATOR, Round(1, None, (), Open(1, "x", gradient=False, tree=False), None)
    )
    assert [(send.to, type(send.message)) for send in sends] == [
        (COORDINATOR, RoundReply),
        ("worker", Pulled),
    ]
    talk.number = 1
    talk.round(close=Close(1, (), 1.0, None))
    late = talk.say(pull, "worker")[0]
    assert isinstance(late, Pulled)
    assert late.error == "evaluation 1 is over"


def test_workers_cannot_command() -> None:
    talk = Talk()
    for message in (
        Round(1, None, (Drop("x"),), None, None),
        AcceptSums(1, 0, (), ()),
        Write(1, "x", (), ()),
    ):
        assert talk.say(message, "worker") == []
    assert talk.vector("x") is not None


def test_an_evaluation_that_is_abandoned_leaves_nothing() -> None:
    talk = Talk()
    talk.open(1)
    talk.push(1, 1, 1.0)
    talk.open(2)
    assert talk.server.pending == 0
    talk.round(close=Close(2, (), 1.0, "g"))
    assert talk.vector("g") == [0.0] * 5


def test_not_a_number_travels_as_it_is() -> None:
    talk = Talk()
    talk.open(1)
    talk.push(1, 1, float("nan"))
    answer = talk.round(Dot("g", "x"), close=Close(1, (SumName(1, 1),), 1.0, "g"))
    assert all(row[0] != row[0] for row in answer.dots)
