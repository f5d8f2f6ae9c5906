"""Ranks of a host find each other, in spite of other callers."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from cotswold.host.ipc import listener as listeners
from cotswold.host.ipc.listener import UNIDENTIFIED_MAX, Listener, TcpListener, call, call_tcp
from cotswold.host.token import sign
from cotswold.launch.watch.failure import is_peer_lost

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory without a name is Linux's")


@pytest.fixture
def listener() -> Iterator[Listener]:
    with closing(Listener(3)) as found:
        yield found


def _stranger(listener: Listener, *said: bytes) -> socket.socket:
    """Connect as a process of the same user that sends something, or nothing."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    found.connect(listener.address)
    for each in said:
        found.send(each)
    return found


def _heard(listener: Listener, *ranks: int) -> None:
    """Call as these ranks, and check that these connections are answered."""
    calls = {rank: call(listener.address, listener.secret, rank, "rank 0", 5) for rank in ranks}
    found = listener.accept_all({rank: f"rank {rank}" for rank in ranks}, 5)
    assert found.keys() == set(ranks)
    for rank, connection in found.items():
        connection.setblocking(True)
        calls[rank].send(b"%d" % rank)
        assert connection.recv(8) == b"%d" % rank
        calls[rank].close()
        connection.close()


def test_callers_are_told_apart_in_whatever_order_they_come(listener: Listener) -> None:
    _heard(listener, 3, 1, 2)


def test_a_silent_stranger_holds_up_nobody(listener: Listener) -> None:
    with _stranger(listener):
        _heard(listener, 1, 2)


@pytest.mark.parametrize(
    "said", [b"", b"x", b"\1" + bytes(7), b"\1" + bytes(7) + b"0" * 32, b"y" * 4096], ids=len
)
def test_a_stranger_that_does_not_know_the_secret_is_sent_away(listener: Listener, said: bytes) -> None:
    with _stranger(listener, said) as stranger:
        _heard(listener, 1)
        stranger.settimeout(5)
        assert stranger.recv(1) == b""


def test_a_stranger_that_is_gone_again_is_forgotten(listener: Listener) -> None:
    _stranger(listener).close()
    _heard(listener, 1)


def test_many_silent_strangers_hold_up_nobody_and_the_first_are_sent_away(listener: Listener) -> None:
    strangers = [_stranger(listener) for _ in range(UNIDENTIFIED_MAX + 2)]
    _heard(listener, 1)
    for stranger in strangers:
        stranger.close()


def test_a_rank_that_nobody_expects_is_not_taken_for_another(listener: Listener) -> None:
    with call(listener.address, listener.secret, 7, "rank 0", 5):
        _heard(listener, 1)


def test_a_rank_that_does_not_come_is_named_though_strangers_wait(listener: Listener) -> None:
    with (
        _stranger(listener),
        pytest.raises(TimeoutError, match=r"rank 2 did not connect within 0.05 s") as late,
    ):
        listener.accept_all({2: "rank 2"}, 0.05)
    assert is_peer_lost(late.value)


def test_strangers_that_call_without_a_pause_do_not_move_the_deadline(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_accept_connection", lambda ready: [])  # so one caller is always waiting
    begun = time.monotonic()
    with _stranger(listener):
        assert listener.accept_ready({2: "rank 2"}, 0.1) == {}
    assert time.monotonic() - begun < 5


def test_a_listener_that_is_gone_is_named_as_lost(listener: Listener) -> None:
    listener.close()
    with pytest.raises(ConnectionResetError, match="rank 3 does not listen") as lost:
        call(listener.address, listener.secret, 1, "rank 3", 5)
    assert is_peer_lost(lost.value)


def test_another_user_is_neither_answered_nor_told_the_secret(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "user_of", lambda _: os.geteuid() + 1)
    with pytest.raises(ConnectionResetError, match="rank 0 does not listen"):
        call(listener.address, listener.secret, 1, "rank 0", 5)
    with _stranger(listener), pytest.raises(TimeoutError, match="rank 1"):
        listener.accept_all({1: "rank 1"}, 0.05)


KEY = b"k" * 32


@pytest.fixture
def tcp_listener() -> Iterator[TcpListener]:
    with closing(TcpListener("127.0.0.1", KEY, 3)) as found:
        yield found


def _tcp_stranger(listener: TcpListener, said: bytes) -> socket.socket:
    host, port = listener.address.decode().split()
    found = socket.create_connection((host, int(port)), 5)
    found.sendall(said)
    return found


def test_callers_from_other_hosts_are_told_apart_in_whatever_order_they_come(
    tcp_listener: TcpListener,
) -> None:
    calls = {rank: call_tcp(tcp_listener.address, KEY, tcp_listener.secret, rank, 5) for rank in (3, 1, 2)}
    found = tcp_listener.accept_all({rank: f"rank {rank}" for rank in calls}, 5)
    for rank, connection in found.items():
        with connection, calls[rank] as other:
            connection.setblocking(True)
            other.send(b"%d" % rank)
            assert connection.recv(8) == b"%d" % rank


@pytest.mark.parametrize("said", [b"", b"x", b"\1" + bytes(7) + b"0" * 64, b"y" * 4096], ids=len)
def test_a_stranger_from_another_host_is_sent_away_and_holds_up_nobody(
    tcp_listener: TcpListener, said: bytes
) -> None:
    with _tcp_stranger(tcp_listener, said) as stranger:
        call = call_tcp(tcp_listener.address, KEY, tcp_listener.secret, 1, 5)
        (found,) = tcp_listener.accept_all({1: "rank 1"}, 5).values()
        with call, found:
            assert found.getpeername() == call.getsockname()
        stranger.settimeout(5)
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""


@pytest.mark.parametrize("wrong", ["key", "secret", "rank"])
def test_a_caller_with_another_token_secret_or_rank_is_not_taken_for_a_peer(
    tcp_listener: TcpListener, wrong: str
) -> None:
    key = b"other" if wrong == "key" else KEY
    secret = b"0" * 32 if wrong == "secret" else tcp_listener.secret
    with call_tcp(tcp_listener.address, key, secret, 7 if wrong == "rank" else 1, 5):
        assert tcp_listener.accept_ready({1: "rank 1"}, 0.1) == {}


def test_what_a_caller_said_serves_nobody_a_second_time(tcp_listener: TcpListener) -> None:
    who = (1).to_bytes(8, "little")
    said = who + sign(KEY, tcp_listener.secret, who)
    with _tcp_stranger(tcp_listener, said) as first, _tcp_stranger(tcp_listener, said):
        found = tcp_listener.accept_ready({1: "rank 1", 2: "rank 2"}, 0.2)
        with found[1] as connection:
            assert connection.getpeername() == first.getsockname()
