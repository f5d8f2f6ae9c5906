"""Late replies of controllers do not count as replies to the current request."""

from __future__ import annotations

import time

import pytest
from tests.ports import free_ports
from tests.support.replication.scripted_controllers import controllers, seen

from cotswold.errors import UserError
from cotswold.host import Token
from cotswold.replication.client.admin import AdminClient, BucketExport
from cotswold.wire import (
    BucketChange,
    DiskStateReply,
    Group,
    LookupReply,
    LookupRequest,
    Message,
    Prepare,
    RunDescription,
    RunDescriptionRequest,
    StatusRequest,
)
from cotswold.wire.messenger import AnyMessage

BUCKETS = ("r/0000", "r/0001")


class Late:
    """Answers every request, and first repeats all earlier replies."""

    def __init__(self) -> None:
        self._answers: list[Message] = []

    def __call__(self, name: str, message: AnyMessage) -> list[Message]:
        self._answers.append(_answer(message))
        return self._answers


def _answer(message: AnyMessage) -> Message:
    match message:
        case StatusRequest():
            return seen(message)
        case LookupRequest():
            groups = tuple(Group(each, message.number, "server-a-0") for each in BUCKETS)
            return LookupReply(groups, (("server-a-0", "somewhere"),), message.number)
        case RunDescriptionRequest(run):
            return RunDescription(run, "" if run == "none" else f"of {run}", message.number)
        case _:
            raise AssertionError(message)


def test_what_is_seen_of_one_bucket_is_not_taken_for_that_of_another() -> None:
    token = Token.new()
    with (
        free_ports(1) as (port,),
        controllers(token, [port], Late()),
        AdminClient([f"127.0.0.1:{port}"], token) as operator,
    ):
        for bucket in ("", "r/0001", "r/0000", "r/0000"):
            assert [each.name for each in operator.status(bucket).events] == [bucket]


def test_buckets_are_those_that_were_found_however_often_it_was_looked_before() -> None:
    token = Token.new()
    with (
        free_ports(1) as (port,),
        controllers(token, [port], Late()),
        AdminClient([f"127.0.0.1:{port}"], token) as operator,
    ):
        terms = [0]
        for _ in range(3):
            operator.status()
            groups = operator.groups()
            assert tuple(groups) == BUCKETS and groups["r/0000"].term > terms[-1], "not those of before"
            terms.append(groups["r/0000"].term)


def test_buckets_are_waited_for_where_they_come_after_all_else() -> None:
    """A controller has a long reply: a request for status meanwhile is answered at once."""
    token, began = Token.new(), list[float]()

    def slowly(name: str, message: AnyMessage) -> list[Message]:
        if not isinstance(message, LookupRequest):
            return [_answer(message)]
        began.append(time.monotonic())
        return [_answer(message)] if began[-1] - began[0] > 0.5 else []

    with (
        free_ports(1) as (port,),
        controllers(token, [port], slowly),
        AdminClient([f"127.0.0.1:{port}"], token) as operator,
    ):
        assert len(operator.groups()) == 2


def test_a_description_is_that_of_the_run_that_is_asked_for() -> None:
    token = Token.new()
    with (
        free_ports(1) as (port,),
        controllers(token, [port], Late()),
        AdminClient([f"127.0.0.1:{port}"], token) as operator,
    ):
        assert operator.description("one") == "of one"
        with pytest.raises(UserError, match="no run none"):
            operator.description("none")
        assert [operator.description(each) for each in ("two", "one")] == ["of two", "of one"]


def test_numbers_of_a_bucket_are_not_saved_as_those_of_a_later_moment() -> None:
    change = BucketChange((0,), (1,), (), (), (), (), (), 0, 0, None, None, 0)

    def prepare(index: int) -> Prepare:
        return Prepare("r/0000", 3, -1, index, index, change, ("x",), (b"%d" % index,))

    whole = BucketExport("r/0000")
    for late in (prepare(7), DiskStateReply("r/0000", "server-a-0", 0, 3, 8)):  # of two questions
        whole.on_message(late)
        assert not whole.is_received() and whole.bucket() is None
    whole.on_message(prepare(8))
    saved = whole.bucket()
    assert whole.is_received() and saved is not None and saved.index == 8 and saved.numbers["x", 0] == b"8"
