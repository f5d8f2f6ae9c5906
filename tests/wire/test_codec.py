"""Every message is decoded as it was encoded, and foreign bytes are refused."""

from __future__ import annotations

import dataclasses
import time
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.wire.codec_specification import read_class

from cotswold import wire as m
from cotswold.host import Token
from cotswold.optim import Combine, Dot, Drop, Multiply
from cotswold.transport import Endpoint
from cotswold.wire import lifecycle as beginning
from cotswold.wire.codec import Packing, UnknownError, decode, encode
from cotswold.wire.messenger import Messenger, Received
from cotswold.wire.validation import MalformedMessageError

TOKEN = Token.new()
_PLAN = m.ReductionSchedule(("a", "b"), ((0, 1, 0, 0, 10),))
_RESULT = m.PortionResult(3, 320, 1.5, (("right", 4.0),), 0.25)
EXAMPLES: tuple[m.Message, ...] = (
    m.Join("worker-1", 1, "tcp://a", 1000, 50),
    m.WorkerHeartbeat(
        1, 2, 1, True, False, (4, 5), (m.ComputedPortion(4, _RESULT, 2, False),), ((1, 3), (7, 7))
    ),
    m.Validate(1, 2, "x", 3, ((0, 320), (320, 400))),
    m.Validated(1, 2, 3, (m.HeldOutSum(0.5, 320, {"accuracy": 7.0}), m.HeldOutSum(0.25, 80, {}))),
    m.Validated(1, 2, 3, (), "it cannot be read"),
    m.StartEvaluation(
        *(1, 2, 1, "trial", True, (m.Fetch("d", _PLAN), m.Fetch("x", None))),
        commands=(Combine("t", ((1.0, "x"), (0.5, "d"))), Multiply("a", "b", "c"), Dot("a", "b"), Drop("c")),
        digests=True,
    ),
    m.Push(1, 2, 3, m.Node(2, 1), (4, 5, 6, 7), (0, 1), (b"abc", memoryview(b"defg"))),
    m.Push(1, 2, 3, None, (4,), (), ()),
    m.Round(7, m.Close(2, (m.SumName(1, 1),), 0.001, None), (), m.Open(3, "x", True, False), "x"),
    m.RoundReply(7, "server-0", (0, 1), ((1.0, float("inf")), (2.0, 3.0)), (1 << 31,), None),
    m.Reduce(1, 2, 1, _PLAN, (1, 2), ((1, 2), (5,))),
    m.SessionOpened("r", 1, 2, "run", (m.Shard(0, "a", 0, 9, "w", 0),), (("a", "tcp://a"),), 0.5, 2.0, "{}"),
    m.ReplicaInstructions(1, ((3, 0, 100), (4, 100, 150)), 2, 0.125, 1),
    m.Update(
        *("run", 1, 7, "factors", (0, 1), (5, 6), 2, 0.5, ((0, 32), (64, 96)), 1),
        *((32, 0), (b"errors", b"whole", memoryview(b"activations"))),
    ),
    m.Applied(1, "a", 7, (0, 1), (6, 7), 1 << 40),
    m.UpdateRefused(1, "a", 7, "busy: 9 bytes of updates wait", True),
    m.PullNewer("run", 0, 0, (0, 1), (-1, 5)),
    m.PulledNewer(1, "a", 8, (0,), (6,), (b"weights",)),
    m.CoordinatorState(3, ((1, "r"), (2, "s")), ((1, 0.5), (2, float("inf"))), 1, 1 << 50),
    m.CoordinatorStateAck(
        3, "a", ((1, ((0, 32), (64, 96)), ()), (2, (), ((32, 64),))), 1, 0, ((1, ((0, 32),), ()),)
    ),
    m.PullFrozen(1, "velocity", (0, 2)),
    m.PullPart("a", m.PullNewer("run", 1, 4, (1,), (-1,))),
    m.PulledPart("a", m.PulledNewer(1, "a", 4, (1,), (6,), ())),
    m.PushPart(
        *("a", 3),
        m.Update("run", 1, 7, "delta", (1,), (5,), 2, 0.5, ((0, 32),), 1, (), (), rank=1, ranks=(0, 1)),
    ),
    m.FrozenPart("a", 1, "velocity", (0, 2), (7, 9), (b"some", b"more")),
)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda one: type(one).__name__)
def test_a_message_comes_back_as_it_was(message: m.Message) -> None:
    header, buffers = encode(message)
    assert decode(msgpack.unpackb(header), buffers) == [message]


def test_messages_that_go_together_come_back_in_their_order() -> None:
    header, buffers = Packing(*EXAMPLES).packed()
    assert decode(msgpack.unpackb(header), buffers) == list(EXAMPLES)


def test_a_message_with_many_portions_needs_no_long_header() -> None:
    message = m.SumPushed(1, 2, 3, tuple(m.PortionResult(n, 320, 0.5) for n in range(20000)))
    header, buffers = encode(message)
    assert len(header) < 1000
    assert decode(msgpack.unpackb(header), buffers) == [message]


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"message": None},
        {"message": []},
        {"message": ["Stranger", 1]},
        {"message": ["Leave"]},
        {"message": ["Leave", "1", "why"]},
        {"message": ["Leave", True, "why"]},
        {"message": ["Node", 1, 2]},  # a part is no message
        {"message": ["Push", 1, 2, 3, None, [4], [0], [{"": 1}]]},  # no such buffer
        {"message": ["Push", 1, 2, 3, None, [4], [0], ["abc"]]},
        {"message": ["Push", 1, 2, 3, None, [4], [0], {"": [0, 2]}]},
        {"message": [["Push", 1, 2, 3, None, [4], [0], {"": [0, 1]}]] * 2},  # the same twice
        {"message": [["Leave", 1, "why"], "Leave"]},
        {"message": [["Leave", 1, "why"], []]},
        {"message": [[]]},
        {"long": True},
    ],
)
def test_what_no_process_of_ours_writes_is_refused(header: dict[str, object]) -> None:
    with pytest.raises(MalformedMessageError):
        decode(header, [b"x"])


@pytest.mark.parametrize(
    "said",
    [
        ["Unheard", 1],
        ["Leave"],
        [["Leave", 1, "why"], ["Unheard"]],
    ],
)
def test_a_message_of_another_release_is_refused_by_its_name(said: list[Any]) -> None:
    with pytest.raises(UnknownError, match="upgrade the older") as raised:
        decode({"message": said}, [])
    assert raised.value.name == (said[-1][0] if isinstance(said[0], list) else said[0])


def test_a_list_that_would_fill_the_memory_is_refused() -> None:
    empty_lists = b"\xdd" + (1 << 26).to_bytes(4, "big") + b"\x90" * (1 << 26)
    with pytest.raises(MalformedMessageError, match="too long"):
        decode({"long": True}, [empty_lists])
    with pytest.raises(ValueError, match="too long"):
        encode(m.Leave(1, "x" * (1 << 26)))


def test_messages_of_another_release_are_counted_by_their_names_of_which_there_are_some() -> None:
    with Endpoint(TOKEN, "one") as one, Endpoint(TOKEN, "other") as other:
        messenger = Messenger(one)
        other.connect("one", one.address)
        names = [
            "Unheard",
            "Leave",
            *(f"Of{chr(65 + number // 26)}{chr(65 + number % 26)}" for number in range(50)),
        ]
        for name in names:
            other.send("one", {"message": [name]})
            other.send("one", {"message": [name]})
        other.send("one", {"message": [["not a name"], ["Leave", 1, "not heard"]]})
        other.send("one", {"message": [["Unheard", 1], ["Leave", 1, "why"]]})
        deadline = time.monotonic() + 10
        while (letter := messenger.receive(0.01)) is None:
            assert time.monotonic() < deadline
            other.flush(0.01)
        assert letter == Received("other", m.Leave(1, "why"))
        refused = {name: count for name, count in one.rejections.items() if count}
        assert (refused["unknown Unheard"], refused["unknown Leave"]) == (3, 2) and refused["malformed"] == 1
        assert len(refused) == 1 + 16 + 1 and refused["unknown"] == 2 * (len(names) - 16)


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
)


@given(st.sampled_from([type(one).__name__ for one in EXAMPLES]), st.lists(_PLAIN, max_size=8))
def test_whatever_arrives_is_a_message_or_refused(name: str, fields: list[object]) -> None:
    try:
        (message,) = decode({"message": [name, *fields]}, [b"x", b"y"])
    except MalformedMessageError:
        return
    assert type(message).__name__ == name


_BUFFERS = [b"x", b"y"]
_CLASSES = (*m.MESSAGES, *beginning.MESSAGES)
_LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    object: st.integers(-1, 2).map(lambda number: {"": number}),
    int: st.integers(-(1 << 63), (1 << 64) - 1),
    float: st.floats() | st.integers(-(1 << 63), (1 << 64) - 1),
    str: st.text(max_size=3),
    bool: st.booleans(),
    types.NoneType: st.none(),
}


def _encoded(hint: Any) -> st.SearchStrategy[Any]:
    """Draw the encoding of a field's type, and sometimes any value."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        right = st.one_of(*map(_encoded, inner))
    elif origin is tuple and inner == (object, Ellipsis):
        ends = st.lists(st.integers(-1, 3), min_size=1, max_size=3) | st.just([0, 2])
        right = st.lists(_encoded(object), max_size=3) | ends.map(lambda two: {"": two})
    elif origin is tuple and inner[1:] == (Ellipsis,):
        right = st.lists(_encoded(inner[0]), max_size=3)
    elif origin is tuple:
        right = st.tuples(*map(_encoded, inner)).map(list)
    elif origin is not None and issubclass(origin, Mapping):
        right = st.dictionaries(st.text(max_size=2), _encoded(inner[1]), max_size=2)
    elif dataclasses.is_dataclass(hint):
        right = _encoded_class(hint)  # type: ignore[arg-type]  # hints of fields are classes
    else:
        right = _LEAVES[hint]
    return st.integers(0, 31).flatmap(lambda chance: _PLAIN if chance == 31 else right)


def _encoded_class(kind: type) -> st.SearchStrategy[list[Any]]:
    hints = get_type_hints(kind)
    fields = [_encoded(hints[each.name]) for each in dataclasses.fields(kind)]
    return st.tuples(st.just(kind.__name__), *fields).map(list)


@pytest.mark.parametrize("kind", _CLASSES, ids=lambda one: one.__name__)
@settings(deadline=None, max_examples=30)  # of each of a hundred kinds; a busy machine is no defect
@given(data=st.data())
def test_every_message_is_read_as_the_specification_says(kind: type, data: st.DataObject) -> None:
    fields = data.draw(_encoded_class(kind))
    try:
        expected = repr(read_class(kind, fields, _BUFFERS))
    except Exception:  # of whatever kind: refused
        with pytest.raises(MalformedMessageError):
            decode({"message": fields}, _BUFFERS)
        return
    assert repr(decode({"message": fields}, _BUFFERS)[0]) == expected  # as text, where NaN equals itself


def test_a_sentence_with_a_name_that_is_no_text_travels_with_its_surrogates_written_out() -> None:
    header, buffers = encode(m.UpdateRefused(1, "a", 7, "no file caf\udce9", False))
    (found,) = decode(msgpack.unpackb(header), buffers)
    assert found == m.UpdateRefused(1, "a", 7, r"no file caf\udce9", False)
