"""Untrusted input: invalid bytes, frames, messages and updates, sent to real parameter servers.

After each of them a correct client finds its servers unchanged.
"""

from __future__ import annotations

import ast
import os
import pickle
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import cotswold
from cotswold import wire as m
from cotswold.api.servers.parameter_server import ServedParameters
from cotswold.host import Token
from cotswold.replicas.client import ParameterClient
from cotswold.transport import Endpoint, Message
from cotswold.transport.frames import DATA, head, to_frames
from cotswold.transport.protocol_versions import PROTOCOL
from cotswold.wire.codec import encode

SIZE = 8
HEAD = head(DATA, PROTOCOL)
SOURCES = Path(cotswold.__file__).parent
ROAD = ("cluster", "server", "host", "optim")
"""Packages that handle incoming messages."""
SECONDS = 10.0


class Mallory:
    """A client that knows the token, like a faulty program, and talks to a server."""

    def __init__(self, served: ServedParameters) -> None:
        host, _, port = served.address.rpartition(":")
        self.client = ParameterClient(host, int(port), Token(served.token))
        self.admitted = self.client._machine._session.admitted  # type: ignore[union-attr]  # it is here
        self.name, self.server = "mallory", self.admitted.servers[0][0]
        self.shards = [one for one in self.admitted.shards if one.server == self.server]
        self.endpoint = Endpoint(Token(served.token), self.name)
        self.endpoint.connect(self.server, self.admitted.servers[0][1])
        self.numbers = 0
        self.settle()

    @property
    def update(self) -> m.Update:
        """Return the next update of a foreign live session: gradients of zeros."""
        buffers = tuple(np.zeros(one.stop - one.start, np.float32).tobytes() for one in self.shards)
        shards = tuple(one.number for one in self.shards)
        session, versions = self.admitted.session, (0,) * len(shards)
        return m.Update(
            self.admitted.run, session, 1, "gradient", shards, versions, 1, 1.0, (), 0, (), buffers
        )

    def send(self, message: Any) -> None:
        header, buffers = encode(message)
        self.endpoint.send(self.server, header, buffers)

    def send_frames(self, frames: Sequence[bytes]) -> None:
        """Send frames on the authenticated connection, without the encoder."""
        peer = self.endpoint._peers.of[self.server].connection
        self.endpoint.flush(SECONDS)
        peer.socket.send_multipart(frames)
        self.endpoint._readiness.recheck(peer.descriptor)

    def settle(self) -> None:
        """Wait until the server has received everything: it answers a later pull."""
        self.numbers -= 1
        self.send(m.PullNewer(self.admitted.run, 0, self.numbers, (), ()))
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            event = self.endpoint.receive(0.1)
            if isinstance(event, Message) and event.header["message"][:1] == ["PulledNewer"]:  # type: ignore[index]  # as ours are
                if event.header["message"][3] == self.numbers:  # type: ignore[index]  # as ours are
                    return
            else:
                assert event is None or isinstance(event, Message), event
        raise AssertionError("the server does not answer")

    def answers(self) -> list[list[Any]]:
        """Return the server's replies, without those to pulls."""
        found = []
        while (event := self.endpoint.receive(0.05)) is not None:
            assert isinstance(event, Message)
            found.append(event.header["message"])
        return found  # type: ignore[return-value]  # lists, as ours are

    def close(self) -> None:
        self.endpoint.close()
        self.client.close()


def make() -> nn.Module:
    module = nn.Linear(SIZE, SIZE, bias=False)
    nn.init.zeros_(module.weight)
    return module


@pytest.fixture(scope="module")
def served() -> Iterator[ServedParameters]:
    with cotswold.serve(make(), servers=2, learning_rate=1.0, shard_bytes=64) as found:
        yield found


@pytest.fixture(scope="module")
def mallory(served: ServedParameters) -> Iterator[Mallory]:
    found = Mallory(served)
    yield found
    found.close()


@pytest.fixture
def unharmed(served: ServedParameters) -> Iterator[None]:
    """Check that a client finds everything unchanged, and that its pushes count."""
    before = dict(served.processes)
    module = make()
    with cotswold.connect(served.address, served.token) as s:
        s.pull(module)
        first = module.weight.detach().clone()  # type: ignore[operator]  # a parameter
        yield
        s.pull(module)
        assert torch.equal(module.weight, first)  # type: ignore[arg-type]  # a parameter
        for sign in (1.0, -1.0):
            module.weight.grad = torch.full((SIZE, SIZE), sign)
            s.push(module, samples=1)
        s.pull(module)
        assert torch.equal(module.weight, first)  # type: ignore[arg-type]  # a parameter
    assert served.processes == before and served.status.torn == 0
    for pid in before.values():
        os.kill(pid, 0)


def refused(served: ServedParameters, reason: str, more_than: int) -> None:
    """Wait until a refusal is counted."""
    deadline = time.monotonic() + SECONDS
    while served.status.refused.get(reason, 0) <= more_than:
        assert time.monotonic() < deadline, served.status.refused
        time.sleep(0.02)


MISTAKES: dict[str, Callable[[m.Update], m.Update]] = {
    "run": lambda update: replace(update, run="run-of-yesterday"),
    "session": lambda update: update,  # it is another's
}
WRONG: dict[str, tuple[str, Callable[[m.Update], m.Update]]] = {
    "NaN": ("finite", lambda one: replace(one, buffers=(_filled(one, np.nan), *one.buffers[1:]))),
    "infinity": ("finite", lambda one: replace(one, buffers=(_filled(one, np.inf), *one.buffers[1:]))),
    "its scale": ("finite", lambda one: replace(one, scale=float("nan"))),
    "too few numbers": ("length", lambda one: replace(one, buffers=(b"\0" * 4, *one.buffers[1:]))),
    "another type": ("length", lambda one: replace(one, buffers=tuple(2 * _bytes(one)))),
    "no whole numbers": ("length", lambda one: replace(one, buffers=(b"\0" * 7, *one.buffers[1:]))),
    "too few buffers": ("length", lambda one: replace(one, buffers=one.buffers[1:])),
    "too few versions": ("length", lambda one: replace(one, versions=())),
    "an unknown shard": ("shard", lambda one: replace(one, shards=(99, *one.shards[1:]))),
    "a shard twice": ("shard", lambda one: replace(one, shards=(one.shards[1], *one.shards[1:]))),
    "a delta": ("kind", lambda one: replace(one, kind="delta")),
    "no kind": ("kind", lambda one: replace(one, kind="surprise")),
    "a rate of nobody": ("rate", lambda one: replace(one, rate=77)),
    "samples twice": ("samples", lambda one: replace(one, samples=((0, 5), (3, 9)))),
    "factors of many": ("length", lambda one: replace(one, kind="factors", examples=(1 << 40,) * 99)),
}


def _bytes(update: m.Update) -> list[bytes]:
    return [bytes(each) for each in update.buffers]  # type: ignore[call-overload]  # bytes


def _filled(update: m.Update, value: float) -> bytes:
    return np.full(len(_bytes(update)[0]) // 4, value, np.float32).tobytes()


def of_living_session(mallory: Mallory, change: Callable[[m.Update], m.Update]) -> str:
    """Let a session push an invalid update, and continue; return the reason of the refusal."""
    client = mallory.client
    machine = client._machine
    assert machine is not None
    with client._lock:
        session = machine._session
        assert session is not None
        session.updates.number += 1
        wrong = replace(change(mallory.update), session=machine.session, number=session.updates.number)
        heard: list[m.UpdateRefused] = []
        session.updates.unanswered = {mallory.server: wrong}
        kept = machine._on_refusal

        def hear(own: Any, server: str, refusal: m.UpdateRefused) -> None:
            heard.append(refusal)
            kept(own, server, refusal)

        machine._on_refusal = hear  # type: ignore[method-assign,assignment]  # to look on
        for server, _ in mallory.admitted.servers[1:]:  # numbers are dense on each server
            session.updates.unanswered[server] = replace(
                wrong, kind="gradient", shards=(), versions=(), buffers=(), examples=()
            )
        client._enqueue([m.Send(to, each) for to, each in session.updates.unanswered.items()])
        assert client._lock.wait_for(lambda: not session.updates.unanswered, SECONDS)
        machine._on_refusal = kept  # type: ignore[method-assign]  # as it was
    assert len({each.reason for each in heard}) == 1 and not heard[0].is_retryable  # a resend hears the same
    return heard[0].reason


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_update_is_refused_with_its_reason_and_counted(
    served: ServedParameters, mallory: Mallory, what: str
) -> None:
    kind, change = WRONG[what]
    before = served.status.refused.get(kind, 0)
    assert of_living_session(mallory, change).startswith(f"{kind}: ")
    refused(served, kind, before)


@pytest.mark.usefixtures("unharmed")
def test_an_update_of_another_run_or_of_a_session_that_is_not_ones_own_is_refused(
    served: ServedParameters, mallory: Mallory
) -> None:
    for kind, change in MISTAKES.items():
        before = served.status.refused.get(kind, 0)
        mallory.send(change(mallory.update))
        (answer,) = mallory.answers()
        assert answer[0] == "UpdateRefused" and answer[4].startswith(f"{kind}: ")
        refused(served, kind, before)


@pytest.mark.usefixtures("unharmed")
def test_an_update_that_comes_twice_counts_once_and_is_answered_again(
    served: ServedParameters, mallory: Mallory
) -> None:
    client = mallory.client
    client.pull()
    ones = np.ones(SIZE * SIZE, np.float32)
    client.push(ones, 1)
    machine = client._machine
    assert machine is not None and machine._session is not None
    number, session = machine._session.updates.number, machine.session
    again = replace(mallory.update, session=session, number=number, buffers=tuple(map(_ones, mallory.shards)))
    with client._lock:
        client._enqueue([m.Send(mallory.server, again)] * 3)
    client.pull()
    client.push(-ones, 1)


def _ones(shard: m.Shard) -> bytes:
    return np.ones(shard.stop - shard.start, np.float32).tobytes()


@pytest.mark.usefixtures("unharmed")
def test_orders_of_somebody_who_is_not_the_coordinator_are_not_obeyed(mallory: Mallory) -> None:
    shards = tuple(one.number for one in mallory.shards)
    sevens = tuple(_ones(one) for one in mallory.shards)
    mallory.send(m.Write(1, "x", shards, sevens))
    mallory.send(m.CoordinatorState(1 << 40, (), (), 7, 0))
    mallory.settle()
    assert mallory.answers() == []


@pytest.mark.usefixtures("unharmed")
def test_a_pull_that_names_a_shard_many_times_is_refused(mallory: Mallory) -> None:
    many = (mallory.shards[0].number,) * 10_000
    mallory.send(m.PullNewer(mallory.admitted.run, 0, 0, many, (-1,) * len(many)))
    mallory.send(m.Pull(0, 0, "x", many))
    newer, pulled = mallory.answers()
    assert newer[:1] == ["PulledNewer"] and "twice" in newer[-1]
    assert pulled[:1] == ["Pulled"] and "twice" in pulled[-1]


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.sampled_from(["x", "run", "gradient", "Update", "PullNewer", "CoordinatorState"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@st.composite
def nearly(draw: st.DrawFn, update: m.Update) -> list[object]:
    """Draw one of our messages with one or two fields replaced."""
    shards = update.shards
    message: Any = draw(
        st.sampled_from(
            [
                update,
                m.PullNewer(update.run, 0, 0, shards, (0,) * len(shards)),
                m.CoordinatorState(5, ((1, "client"),), ((1, 0.1),), 0, 0),
                m.Pull(0, 0, "x", shards),
                m.Push(1, 1, 1, None, (0,), shards, ()),
                m.Write(1, "x", shards, ()),
            ]
        )
    )
    fields: list[object] = [type(message).__name__, *astuple(message)]
    for _ in range(draw(st.integers(1, 2))):
        fields[draw(st.integers(0, len(fields) - 1))] = draw(plain)
    if "buffers" in type(message).__dataclass_fields__ and not isinstance(fields[-1], list):
        fields[-1] = [{"": number} for number in range(draw(st.integers(0, 4)))]
    return [list(each) if isinstance(each, tuple) else each for each in fields]


@pytest.mark.usefixtures("unharmed")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_a_holder_of_the_token_sends_disturbs_nobody(mallory: Mallory, data: st.DataObject) -> None:
    buffers = data.draw(st.lists(st.binary(max_size=40), max_size=3))
    if data.draw(st.booleans()):
        said = data.draw(nearly(mallory.update))
        mallory.endpoint.send(mallory.server, msgpack.packb({"message": said}), buffers)
    else:
        kind = data.draw(st.sampled_from([DATA, b"H", b"W", b"G", b"M", b"?", b""]))
        packed = data.draw(st.binary(max_size=60) | plain.map(msgpack.packb))
        mallory.send_frames([kind + bytes((PROTOCOL,)) + packed, *buffers])
    mallory.settle()


@pytest.mark.usefixtures("unharmed")
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_message_that_is_cut_short_is_counted_and_passed_over(
    served: ServedParameters, mallory: Mallory, data: st.DataObject
) -> None:
    header, buffers = encode(mallory.update)
    sizes = [memoryview(each).nbytes for each in buffers]
    first = HEAD + b"\x92" + header + msgpack.packb(sizes)
    frames = [first, *map(bytes, to_frames([memoryview(each) for each in buffers], sizes))]
    cut = data.draw(st.integers(0, len(frames) - 1))
    rest = frames[cut][: data.draw(st.integers(0, len(frames[cut]) - 1))]
    before = served.status.refused.get("malformed", 0)
    mallory.send_frames([*frames[:cut], rest])
    mallory.settle()
    if data.draw(st.integers(0, 30)) == 0:  # not each time: counts come some times a second
        refused(served, "malformed", before)


@pytest.mark.usefixtures("unharmed")
def test_a_gigantic_length_that_is_announced_is_refused(served: ServedParameters, mallory: Mallory) -> None:
    before = served.status.refused.get("oversized", 0)
    header, _ = encode(mallory.update)
    mallory.send_frames([HEAD + b"\x92" + header + msgpack.packb([1 << 62])])
    mallory.settle()
    refused(served, "oversized", before)


@pytest.mark.usefixtures("unharmed")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(garbage=st.binary(max_size=200), greets=st.booleans())
def test_bytes_of_strangers_at_the_port_do_no_harm(
    served: ServedParameters, garbage: bytes, greets: bool
) -> None:
    host, _, port = served.address.rpartition(":")
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL".ljust(22, b"\0") + bytes(33)
    with socket.create_connection((host, int(port)), timeout=SECONDS) as caller:
        caller.sendall((greeting if greets else b"") + garbage)
        with suppress(ConnectionError):  # it hangs up as soon as it can
            caller.sendall(b"\x02" + struct.pack(">Q", 1 << 62) + garbage)  # a frame of that many bytes


def test_a_stranger_without_the_token_is_not_heard(served: ServedParameters) -> None:
    before = served.status.refused.get("strangers", 0)
    context = zmq.Context()
    socket_ = context.socket(zmq.DEALER)
    try:
        socket_.connect(f"tcp://{served.address}")
        socket_.send_multipart([HEAD + msgpack.packb([{"message": ["ConnectRequest"]}, []])])
        refused(served, "strangers", before)
        assert not socket_.poll(200)
    finally:
        socket_.close(0)
        context.term()


class Bomb:
    """Makes a folder when unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.place),)


@pytest.mark.usefixtures("unharmed")
def test_a_pickle_does_nothing(mallory: Mallory, tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "bomb"))
    mallory.send_frames([HEAD + bomb])
    mallory.send_frames([bomb, bomb])
    mallory.send_frames(
        [HEAD + b"\x92" + msgpack.packb({"message": bomb}) + msgpack.packb([len(bomb)]), bomb]
    )
    mallory.endpoint.send(mallory.server, msgpack.packb({"long": True}), [bomb])
    mallory.send(replace(mallory.update, buffers=(bomb,) * len(mallory.shards)))
    mallory.settle()
    assert list(tmp_path.iterdir()) == []
    pickle.loads(bomb)  # it is one
    assert len(list(tmp_path.iterdir())) == 1


def test_no_module_that_handles_received_bytes_can_unpickle() -> None:
    unpickling = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "recv_pyobj", "load", "eval", "exec"}
    allowed = {("code_cache.py", "load")}
    found = set()
    for package in ROAD:
        for path in sorted((SOURCES / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                names: list[str] = []
                if isinstance(node, ast.Import):
                    names = [each.name.partition(".")[0] for each in node.names]
                elif isinstance(node, ast.ImportFrom):
                    names = [(node.module or "").partition(".")[0], *(each.name for each in node.names)]
                elif isinstance(node, ast.Call):
                    called = node.func
                    if isinstance(called, ast.Name) and called.id in ("eval", "exec"):
                        names = [called.id]
                    elif isinstance(called, ast.Attribute) and called.attr == "recv_pyobj":
                        names = [called.attr]
                    elif isinstance(called, ast.Attribute) and ast.unparse(called) in (
                        "torch.load",
                        "np.load",
                    ):
                        names = ["load"]
                found |= {(path.name, name) for name in names if name in unpickling}
    assert found - allowed == set()
