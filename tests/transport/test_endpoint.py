"""Endpoints: messages between peers, access, and peers that end, stop or send garbage."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol

import msgpack
import numpy as np
import pytest
import zmq
from tests.ports import free_ports
from tests.support.transport.endpoints import SECONDS, connected, heard, message, until
from tests.warm import PYTHON

from cotswold.errors import ClusterError, MachineError, UserError
from cotswold.host import Token
from cotswold.transport import Endpoint, Lost, Ready, peers
from cotswold.transport.address import Address, this_host
from cotswold.transport.authentication import Keys, call_as, new_nonce
from cotswold.transport.frames import to_frames
from cotswold.transport.handshake import Hello
from cotswold.transport.protocol_versions import PROTOCOL

TOKEN = Token.new()
VERSION = bytes((PROTOCOL,))


class Make(Protocol):
    def __call__(self, name: str, token: Token = TOKEN, **settings: Any) -> Endpoint: ...


@pytest.fixture
def make() -> Iterator[Make]:
    with ExitStack() as open_:

        def one(name: str, token: Token = TOKEN, **settings: Any) -> Endpoint:
            return open_.enter_context(Endpoint(token, name, **settings))

        yield one


@pytest.fixture(params=["unix", "hmac", "curve"])
def settings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return settings of transports; except for the first, endpoints treat each other as on other hosts."""
    if request.param == "unix":
        return {}
    monkeypatch.setattr(Address, "is_local", property(lambda _: False))
    if request.param == "curve":  # never on the loopback
        monkeypatch.setattr("cotswold.transport.endpoint._loops", lambda _: False)
    return {"host": "127.0.0.1"}


def test_what_is_sent_arrives_in_order_and_may_change_at_once(make: Make, settings: dict[str, Any]) -> None:
    one, other = make("one", **settings), make("other", **settings)
    one.connect("other", other.address)
    values = np.arange(100_000, dtype=np.float32)
    for number in range(20):
        values[0] = number
        assert one.send("other", {"number": number, "words": ["a", None, 1.5]}, [values.data, b"", b"abc"])
        values[0] = -1
    for number in range(20):
        came = message(other, one)
        assert came.sender == "one" and came.header == {"number": number, "words": ["a", None, 1.5]}
        assert [one.nbytes for one in came.buffers] == [400_000, 0, 3]
        assert np.frombuffer(came.buffers[0], np.float32)[:2].tolist() == [number, 1]
        assert bytes(came.buffers[2]) == b"abc"
    assert other.send("one", {"back": True}) and message(one, other).header == {"back": True}


@pytest.mark.parametrize("count", [0, 1, (16 << 20) - 1, 16 << 20, (16 << 20) + 1, 40 << 20])
def test_buffers_of_any_length_pass_in_frames_of_bounded_length(
    make: Make, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(Address, "is_local", property(lambda _: False))
    one, other = make("one", host="127.0.0.1"), make("other", host="127.0.0.1")
    one.connect("other", other.address)
    data = np.resize(np.arange(251, dtype=np.uint8), count)
    one.send("other", {}, [data.data, data.data])
    came = message(other, one)
    assert all(np.array_equal(np.frombuffer(each, np.uint8), data) for each in came.buffers)
    assert one.traffic.sent_shared_bytes == 0 and one.traffic.sent_bytes >= 2 * count


def test_processes_of_one_host_read_long_buffers_where_the_sender_put_them(make: Make) -> None:
    one, other = make("one"), make("other")
    connected(one, other)
    values = np.arange(1 << 20, dtype=np.float32)
    one.send("other", {}, [values.data])
    came = np.frombuffer(message(other, one).buffers[0], np.float32)
    assert one.traffic.sent_shared_bytes == values.nbytes == other.traffic.received_shared_bytes
    assert one.traffic.sent_bytes < 200
    assert one.unread_bytes("other") == values.nbytes
    one.send("other", {}, [(values + 1).data])  # another block: the first is being read
    assert np.frombuffer(message(other, one).buffers[0], np.float32)[0] == 1
    assert np.array_equal(came, values)
    del came
    until(lambda: one.unread_bytes("other") == 0, other, one)


def test_shared_memory_can_be_turned_off(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTSWOLD_SHARED_MEMORY", "0")
    one, other = make("one"), make("other")
    connected(one, other)
    one.send("other", {}, [bytes(1 << 20)])
    assert message(other, one).buffers[0].nbytes == 1 << 20
    assert one.traffic.sent_shared_bytes == 0


def test_a_peer_that_closes_is_lost_to_all_its_peers(make: Make, settings: dict[str, Any]) -> None:
    one, other, third = (make(name, **settings) for name in ("one", "other", "third"))
    connected(one, other)
    connected(third, other)
    other.close()
    for left in (one, third):
        assert heard(left) == Lost("other", "its connection ended")
        assert not left.send("other", {}) and left.peers == ()


PEER = """
import os, sys, time
from cotswold.transport import Endpoint
from cotswold.host import token_of
with Endpoint(token_of(os.environ), "child") as here:
    here.connect("parent", sys.argv[1])
    here.send("parent", {"pid": os.getpid()})
    while True:
        print(here.receive(None), flush=True)
"""


@pytest.fixture
def child(make: Make, tmp_path: Path) -> Iterator[tuple[Endpoint, subprocess.Popen[str]]]:
    """Yield an endpoint, and a process connected to it."""
    parent = make("parent", waiting_bytes=8 << 20)
    process = subprocess.Popen(
        [*PYTHON, "-c", PEER, parent.address],
        env={**os.environ, "COTSWOLD_TOKEN": TOKEN.text, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert message(parent).header == {"pid": process.pid}
        yield parent, process
    finally:
        process.kill()
        process.communicate()


def test_all_that_waits_for_a_peer_that_is_slower_leaves(
    child: tuple[Endpoint, subprocess.Popen[str]],
) -> None:
    parent, process = child
    assert process.stdout is not None
    for _ in range(20):
        for number in range(200):
            assert parent.send("child", {"number": number}, [bytes(1 << 14)])
        until(lambda: parent.unread_bytes("child") == 0, parent)
        for number in range(200):
            assert f"'number': {number}}}" in process.stdout.readline()


def test_flushing_ends_once_all_is_handed_on_though_nothing_more_comes(make: Make) -> None:
    one, other = make("one"), make("other")
    other.connect("one", one.address)
    until(lambda: "other" in one.peers, one)  # which has called back
    assert one.send("other", {"waits": "for the answer"})
    deadline = time.monotonic() + SECONDS
    socket_ = one._peers.of["other"].connection.socket
    while (came := socket_.poll(10)) != zmq.POLLIN and time.monotonic() < deadline:
        other.receive(0.01)  # greets, and answers
    assert came == zmq.POLLIN
    started = time.monotonic()
    assert one.flush(SECONDS)
    assert time.monotonic() - started < SECONDS / 4
    assert message(other).header == {"waits": "for the answer"}


def test_a_killed_process_is_heard_of_at_once(child: tuple[Endpoint, subprocess.Popen[str]]) -> None:
    parent, process = child
    process.kill()
    killed = time.monotonic()
    lost = heard(parent)
    assert isinstance(lost, Lost) and lost.peer == "child"
    assert time.monotonic() - killed < 2


def test_for_a_stopped_process_no_more_than_the_bound_is_kept_and_it_hears_so_when_it_wakes(
    child: tuple[Endpoint, subprocess.Popen[str]],
) -> None:
    parent, process = child
    process.send_signal(signal.SIGSTOP)
    sent = 0
    while parent.send("child", {}, [bytes(1 << 20)]):
        sent += 1
        assert sent < 50
    lost = heard(parent)
    assert isinstance(lost, Lost) and lost.peer == "child" and "reads nothing" in lost.why
    process.send_signal(signal.SIGCONT)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Lost"):
            assert "parent" in line
            break
    assert parent.receive(0.1) is None


def test_a_new_process_takes_the_place_of_one_with_its_name(make: Make) -> None:
    server, first, second = make("server"), make("worker"), make("worker")
    connected(first, server)
    second.connect("server", server.address)
    second.send("server", {"which": 2})
    assert isinstance(heard(server, second), Lost)
    assert message(server, second).header == {"which": 2}
    lost = heard(first)
    assert isinstance(lost, Lost) and lost.peer == "server"
    server.send("worker", {"to": 2})
    assert message(second, server).header == {"to": 2}


def test_a_dropped_peer_is_told_and_may_connect_again(make: Make) -> None:
    one, other = make("one"), make("other")
    connected(one, other)
    one.drop("other")
    assert one.receive(0.05) is None
    assert isinstance(heard(other, one), Lost)
    connected(other, one)


def test_a_watched_descriptor_ends_the_waiting(make: Make) -> None:
    one = make("one")
    out, into = os.pipe()
    try:
        one.watch(out)
        assert one.receive(0.01) is None
        os.write(into, b"x")
        assert one.receive(SECONDS) == Ready(out)
        one.unwatch(out)
        assert one.receive(0.01) is None
    finally:
        os.close(out)
        os.close(into)


def test_who_has_another_token_gets_no_further_than_the_handshake(
    make: Make, settings: dict[str, Any]
) -> None:
    one, stranger = make("one", **settings), make("stranger", Token.new(), **settings)
    stranger.connect("one", one.address)
    stranger.send("one", {"let": "me in"})
    lost = heard(stranger, one)
    assert isinstance(lost, Lost) and lost.by_token and "token" in lost.why
    assert one.receive(0.2) is None
    assert one.peers == () and one.rejections["strangers"] == 1


@pytest.mark.parametrize("where", ["unix", "tcp"])
def test_who_ends_while_it_is_called_has_not_refused_the_token(
    make: Make, where: str, tmp_path: Path
) -> None:
    one = make("one", host="127.0.0.1")
    path = str(tmp_path / "ends")
    with socket.socket(socket.AF_UNIX if where == "unix" else socket.AF_INET) as listener:
        listener.bind(path if where == "unix" else ("127.0.0.1", 0))
        listener.listen()
        unix = f"ipc://{path}" if where == "unix" else None
        tcp = None if where == "unix" else f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        one.connect("other", str(Address(this_host(), os.getpid(), "challenge", unix, tcp, "hmac")))
        called, _ = listener.accept()
        assert called.recv(1)
        called.close()
    lost = heard(one)
    assert isinstance(lost, Lost) and lost.peer == "other" and "token" not in lost.why


@pytest.mark.parametrize("where", ["unix", "tcp"])
def test_a_caller_who_proves_nothing_or_says_again_what_another_said_is_refused(
    make: Make, where: str
) -> None:
    one = make("one", host="127.0.0.1")
    address = Address.parsed(one.address)
    endpoint = address.unix if where == "unix" else address.tcp
    assert endpoint is not None
    nonce = new_nonce()
    with zmq.Context() as context:
        for attempt in range(3):
            caller = context.socket(zmq.DEALER)
            caller.linger = 0
            if attempt:  # right, but the second time it is not new
                call_as(caller, Keys.of(TOKEN), "hmac", address.challenge, "caller", nonce)
            caller.connect(endpoint)
            with suppress(zmq.Again):  # refused already
                caller.send(b"H" + VERSION + b"?", zmq.NOBLOCK)
            expected = "malformed" if attempt == 1 else "strangers"
            before = one.rejections[expected]
            until(lambda: one.rejections[expected] > before, one)  # noqa: B023  # called here
            caller.close()


def test_short_buffers_share_a_frame_and_come_apart_as_they_were(
    make: Make, settings: dict[str, Any]
) -> None:
    one, other = make("one", **settings), make("other", **settings)
    one.connect("other", other.address)
    random = np.random.default_rng(1)
    lengths = [0, 1, 70_000, 0, 190_000, 3, 262_144, 262_145, 5, 0]
    sent = [random.bytes(length) for length in lengths]
    one.send("other", {}, sent)
    assert [bytes(each) for each in message(other, one).buffers] == sent
    assert len(to_frames([memoryview(each) for each in sent], lengths)) == 4


def test_bytes_that_are_no_messages_do_no_harm_and_are_counted(make: Make) -> None:
    one, other = make("one", message_bytes=1 << 20), make("other")
    connected(other, one)
    raw = other._peers.of["one"].connection.socket
    good = msgpack.packb([{}, []])
    bad = [
        *([b"D"], [b"?", good], [b"D", b"\xc1"], [b"D", msgpack.packb(7)], [b"D", msgpack.packb([{}, [5]])]),
        *([b"D", good, b"extra"], [b"D", msgpack.packb([{}, [-1]])], [b"D", msgpack.packb([[], []])]),
        *([b"D", msgpack.packb([{}, [3]]), b"ab"], [b"D", msgpack.packb([{}, [3], [0, 0, 1 << 16]])]),
        *([b"D", msgpack.packb([{}, [3], [0, 10**6, 1 << 16]])], [b"M", msgpack.packb([[99], []])]),
        *(
            [b"M", b""],
            [b"M", msgpack.packb([["a"], []])],
            [b"H", msgpack.packb({"name": "x"})],
            [b"H", good],
        ),
        [b"H", msgpack.packb({"name": "a b", "address": "x", "nonce": "x", "to": "one", "probe": 1})],
        [b"D", b"[" * 100_000],
    ]
    for kind, *rest in bad:
        raw.send_multipart([kind + VERSION + b"".join(rest[:1]), *rest[1:]])
    for short in (b"", b"D", b"H"):
        raw.send(short)
    until(lambda: one.rejections["malformed"] == len(bad) + 3, one)
    other.send("one", {}, [bytes(1 << 20)])
    assert message(one, other).buffers[0].nbytes == 1 << 20
    other.send("one", {}, [bytes((1 << 20) + 1)])
    until(lambda: one.rejections["oversized"] == 1, one, other)
    other.send("one", {"still": "here"})
    assert message(one, other).header == {"still": "here"}


def test_a_frame_that_is_announced_too_long_ends_the_connection(make: Make) -> None:
    one, other = make("one"), make("other")
    connected(other, one)
    other._peers.of["one"].connection.socket.send_multipart([b"D" + VERSION, bytes(17 << 20)])
    lost = heard(other, one)
    assert isinstance(lost, Lost) and lost.peer == "one"


def test_garbage_on_the_port_does_no_harm(make: Make) -> None:
    one, other = make("one", host="127.0.0.1"), make("other")
    port = int(str(Address.parsed(one.address).tcp).rpartition(":")[2])
    for text in (b"GET / HTTP/1.1\r\n\r\n", bytes(1000), b"\xff" + bytes(8) + b"\x7f\x03\x00NULL", b""):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(text)
    connected(other, one)


def test_an_impostor_at_a_peers_address_is_sent_nothing(make: Make, tmp_path: Path) -> None:
    one, true = make("one"), make("true")
    address = Address.parsed(true.address)
    with zmq.Context() as context:
        impostor = context.socket(zmq.ROUTER)
        impostor.linger = 0
        asked = context.socket(zmq.REP)  # it takes every caller
        asked.bind("inproc://zeromq.zap.01")
        impostor.zap_domain = b"any"
        impostor.plain_server = 1
        impostor.bind(f"ipc://{tmp_path}/socket")
        false = str(
            Address(
                address.host, address.process, address.challenge, f"ipc://{tmp_path}/socket", None, "hmac"
            )
        )
        one.connect("true", false)
        one.send("true", {"secret": 1})
        assert asked.poll(10_000)
        version, request, *_ = asked.recv_multipart()
        asked.send_multipart([version, request, b"200", b"OK", b"", b""])
        assert impostor.poll(10_000)
        number, kind, *_ = impostor.recv_multipart()
        assert kind[:1] == b"H"
        impostor.send_multipart([number, b"W" + VERSION, b"0" * 64, b"1"])
        lost = heard(one)
        assert isinstance(lost, Lost) and "another process" in lost.why
        assert not impostor.poll(100)
        impostor.close()
        asked.close(0)


def test_an_endpoint_with_another_name_is_not_taken_for_the_peer(make: Make) -> None:
    one, other = make("one"), make("other")
    one.connect("third", other.address)
    assert other.receive(0.2) is None
    lost = heard(one)
    assert isinstance(lost, Lost) and lost.peer == "third"


def test_where_nobody_listens_any_more_the_peer_is_lost(make: Make, settings: dict[str, Any]) -> None:
    one, other = make("one", **settings), make("other", **settings)
    address = other.address
    other.close()
    one.connect("other", address)
    assert isinstance(heard(one), Lost)


def test_headers_and_buffers_that_cannot_travel_are_refused(make: Make) -> None:
    one, other = make("one", message_bytes=100), make("other")
    connected(one, other)
    with pytest.raises(TypeError):
        one.send("other", {"what": object()})
    with pytest.raises(ValueError, match="send long values as buffers"):
        one.send("other", {"what": "x" * (1 << 21)})
    with pytest.raises(UserError, match="in parts"):
        one.send("other", {}, [bytes(101)])
    with pytest.raises(BufferError, match="contiguous"):
        one.send("other", {}, [memoryview(bytes(100))[::2]])
    assert not one.send("nobody", {})


def test_names_addresses_and_ports_that_are_none_are_refused(make: Make) -> None:
    one = make("one", host="127.0.0.1")
    for text in ("", "tcp://127.0.0.1:5", "a b c d e f", "h 1 c ipc://x tcp://y rot13", "x" * 5000):
        with pytest.raises(ClusterError, match="not an endpoint"):
            one.connect("other", text)
    for name in ("", "a b", "x" * 65):
        with pytest.raises(UserError, match="name"):
            make(name)
    port = int(str(Address.parsed(one.address).tcp).rpartition(":")[2])
    with pytest.raises(MachineError, match=rf"its only port, {port}, is taken"):
        make("other", host="127.0.0.1", ports=[port])
    with pytest.raises(MachineError, match="assign requested address; give a free port"):
        make("other", host="192.0.2.77", ports=[port])
    with free_ports(1) as (free,):
        other = make("other", host="127.0.0.1", ports=[port, free])
        assert Address.parsed(other.address).tcp == f"tcp://127.0.0.1:{free}"


def test_the_folder_of_the_socket_is_its_users_alone_and_goes_with_it(make: Make) -> None:
    one = make("one")
    folder = Path(str(Address.parsed(one.address).unix).removeprefix("ipc://")).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    one.close()
    assert not folder.exists()


def test_no_descriptors_are_left_behind() -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def use() -> None:
        with Endpoint(TOKEN, "one") as one, Endpoint(TOKEN, "other") as other:
            connected(one, other)
            one.send("other", {}, [bytes(1 << 20)])
            assert message(other, one).buffers[0].nbytes == 1 << 20

    use()
    before = count()
    for _ in range(3):
        use()
    assert count() == before


def test_nobody_comes_in_under_a_name_that_is_kept_for_whom_this_process_calls(make: Make) -> None:
    one, true, false = make("one"), make("true"), make("true")
    one.reserve_name("true")
    for number in range(2):
        false.connect("one", one.address)
        false.send("one", {"says": "the false one"})
        lost = heard(false, one)
        assert isinstance(lost, Lost) and one.rejections["strangers"] == number + 1
        if number == 0:
            connected(one, true)
    true.send("one", {"says": "the true one"})
    assert message(one, true).header == {"says": "the true one"}
    true.close()
    assert isinstance(heard(one), Lost)


def test_a_peer_that_is_kept_may_call_at_the_same_moment(make: Make) -> None:
    one, other = make("one"), make("other")
    one.reserve_name("other")
    one.connect("other", other.address)
    other.connect("one", one.address)
    other.send("one", {"number": 1})
    one.send("other", {"number": 2})
    assert message(one, other).header == {"number": 1}
    assert message(other, one).header == {"number": 2}


def test_one_connection_has_one_name(make: Make) -> None:
    one, other, third = make("one"), make("other"), make("third")
    connected(other, one)
    raw = other._peers.of["one"].connection.socket
    for number in range(50):
        said = Hello(f"name-{number}", Address.parsed(third.address), "nonce", "one", -1, PROTOCOL)
        raw.send(b"H" + VERSION + said.packed)
    until(lambda: one.rejections["strangers"] == 50, one)
    assert one.peers == ("other",)


def test_more_peers_than_there_may_be_are_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MAX_PEERS", 3)
    one = make("one")
    for number in range(3):
        connected(make(f"peer-{number}"), one)
    late = make("late")
    one.flush(0.01)  # so that only the new call makes it read
    late.connect("one", one.address)
    assert isinstance(heard(late, one), Lost) and len(one.peers) == 3
    until(lambda: one.rejections["strangers"] == 1, one)


def test_a_caller_comes_in_under_no_name_but_the_one_that_it_has_signed(make: Make) -> None:
    one, third = make("one"), make("third")
    address, nonce = Address.parsed(one.address), new_nonce()
    assert address.unix is not None
    with zmq.Context() as context, context.socket(zmq.DEALER) as caller:
        caller.linger = 0
        call_as(caller, Keys.of(TOKEN), "hmac", address.challenge, "replica-1", nonce)
        caller.connect(address.unix)
        for name, text in (("station-0f/a", nonce), ("replica-1", new_nonce()), ("replica-1", nonce)):
            said = Hello(name, Address.parsed(third.address), text, "one", -1, PROTOCOL)
            caller.send(b"H" + VERSION + said.packed)
        until(lambda: one.rejections["strangers"] == 2 and one.peers == ("replica-1",), one)


def test_a_peer_for_whom_no_descriptors_are_left_is_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, late = make("one"), make("late")
    connected(make("early"), one)
    late.connect("one", one.address)
    monkeypatch.setattr(peers, "can_open", lambda count: False)  # ZeroMQ would end the process
    until(lambda: one.rejections["strangers"] == 1, one)
    assert isinstance(heard(late), Lost) and one.peers == ("early",)
    monkeypatch.setattr("cotswold.transport.outgoing.can_open", lambda count: False)
    with pytest.raises(ClusterError, match=r"one cannot be called: .*ulimit -n"):
        late.connect("one", one.address)


MANY = """
import os, resource, sys, threading
from cotswold.transport import Endpoint, Message
from cotswold.host import token_of
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (150, hard))
with Endpoint(token_of(os.environ), "many") as here:
    print(here.address, flush=True)
    while isinstance(event := here.receive(10), Message):
        here.send(event.sender, {})
"""


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2000, reason="so many descriptors are not allowed"
)
def test_a_process_has_as_many_descriptors_as_its_peers_need(make: Make) -> None:
    process = subprocess.Popen(
        [*PYTHON, "-c", MANY],
        env={**os.environ, "COTSWOLD_TOKEN": TOKEN.text, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    try:
        for number in range(40):  # of five descriptors each
            peer = make(f"peer-{number}")
            peer.connect("many", address)
            peer.send("many", {})
            assert message(peer).sender == "many"
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
