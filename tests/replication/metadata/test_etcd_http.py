"""Requests to a failing member; the member is fake."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cotswold.errors import MachineError
from cotswold.replication.metadata import Etcd, EtcdStore, OutcomeUnknownError

HEADER = {"cluster_id": "7", "revision": "1"}
_TRANSACTION = "/v3/kv/txn"
Reply = Callable[["_Handler"], None]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Member

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(self.path)
        if len(self.server.asked) == 1:  # a greeting
            answering(200, {"header": HEADER})(self)
        else:
            try:
                self.server.reply(self)
            except OSError:  # nobody listens any more
                self.close_connection = True

    def log_message(self, format: str, *words: object) -> None:
        pass


class Member(ThreadingHTTPServer):
    """A fake member that greets, and then replies as the test says."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        self.reply: Reply = answering(200, {"header": HEADER, "succeeded": True})
        self.endpoint = f"127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that hang up during a reply."""
        if not isinstance(sys.exception(), OSError):
            raise AssertionError("the member that is played has failed") from sys.exception()


def answering(status: int, answer: object) -> Reply:
    return sending(status, json.dumps(answer).encode())


def sending(status: int, contents: bytes, *, length: int | None = None) -> Reply:
    def reply(handler: _Handler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(contents) if length is None else length))
        handler.end_headers()
        handler.wfile.write(contents)
        handler.close_connection = length is not None

    return reply


def hang_up(handler: _Handler) -> None:
    handler.close_connection = True


def last(handler: _Handler) -> None:
    """Answer, and close the connection without notice."""
    answering(200, {"header": HEADER, "succeeded": True})(handler)
    handler.close_connection = True


def trickle(handler: _Handler) -> None:
    """Send one byte after another for a long time."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    stop = threading.Event()
    for _ in range(1000):
        handler.wfile.write(b" ")
        stop.wait(0.02)


@pytest.fixture
def two() -> Iterator[tuple[Member, Member]]:
    both = (Member(), Member())
    threads = [threading.Thread(target=each.serve_forever, args=(0.01,)) for each in both]
    for thread in threads:
        thread.start()
    yield both
    for each, thread in zip(both, threads, strict=True):
        each.shutdown()
        thread.join(10)
        each.server_close()


def state_of(two: tuple[Member, Member]) -> EtcdStore:
    return EtcdStore(Etcd(tuple(each.endpoint for each in two), timeout_seconds=0.5))


DOUBTS: dict[str, tuple[Reply, str]] = {
    "hangs up": (hang_up, "hung up"),
    "breaks off": (sending(200, b'{"header"', length=100), "IncompleteRead"),
    "trickles": (trickle, "did not answer in time"),
    "is no JSON": (sending(200, b"<html>"), "which is not JSON"),
    "is no object": (sending(200, b"[]"), "instead of an object"),
    "has no header": (answering(200, {"succeeded": True}), "has no field 'header'"),
    "says yes in words": (answering(200, {"header": HEADER, "succeeded": "yes"}), "not bool"),
    "has timed out": (answering(503, {"error": "etcdserver: request timed out", "code": 14}), "timed out"),
    "has no space": (answering(429, {"error": "mvcc: database space exceeded", "code": 8}), "space exceeded"),
    "is a stranger": (sending(404, b"not found"), "HTTP status 404"),
}


@pytest.mark.parametrize("name", DOUBTS)
def test_a_transaction_that_went_out_is_in_doubt_and_never_asked_again(
    two: tuple[Member, Member], name: str
) -> None:
    two[0].reply, why = DOUBTS[name]
    with (
        state_of(two) as state,
        pytest.raises(OutcomeUnknownError, match=f"{why}.*; whether it is done shows when the state is read"),
    ):
        state.transact([], [("a", "1")])
    assert two[0].asked[1:] == [_TRANSACTION] and not two[1].asked


def test_a_read_that_one_member_does_not_answer_is_asked_of_the_next(two: tuple[Member, Member]) -> None:
    two[0].reply = hang_up
    two[1].reply = answering(200, {"header": HEADER, "kvs": [{"key": "YQ==", "value": "MQ=="}]})
    with state_of(two) as state:
        assert state.read("") == {"a": "1"}


def test_a_transaction_that_is_refused_was_not_done(two: tuple[Member, Member]) -> None:
    two[0].reply = answering(403, {"error": "etcdserver: permission denied", "code": 7})
    with state_of(two) as state, pytest.raises(MachineError, match="permission denied; check") as caught:
        state.transact([], [("a", "1")])
    assert not isinstance(caught.value, OutcomeUnknownError)


def test_a_connection_that_a_member_has_closed_since_is_no_reason_for_doubt(
    two: tuple[Member, Member],
) -> None:
    with state_of(two) as state:
        for _ in range(5):
            two[0].asked.clear()
            two[0].reply = last
            assert state.transact([], [("a", "1")])
            assert state._gateway._connection is not None
            assert state._gateway._connection.sock.recv(1) == b""  # it has hung up by now
    assert not two[1].asked


def test_an_answer_without_end_is_not_read(
    two: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotswold.replication.metadata.etcd_http.ANSWER_BYTES_MAX", 10_000)
    two[0].reply = two[1].reply = sending(200, b" " * 200_000)
    with (
        state_of(two) as state,
        pytest.raises(MachineError, match=r"no member .*more than 10000 bytes.*; have most of its members"),
    ):
        state.read("")


KEYS_NOT_ASKED_FOR = {
    "of another prefix": [{"key": "Yg=="}],
    "twice": [{"key": "YQ=="}, {"key": "YQ=="}],
    "no base64": [{"key": "?"}],
    "no key": ["a"],
}


@pytest.mark.parametrize("name", KEYS_NOT_ASKED_FOR)
def test_keys_that_were_not_asked_for_are_told(two: tuple[Member, Member], name: str) -> None:
    two[0].reply = answering(200, {"header": HEADER, "kvs": KEYS_NOT_ASKED_FOR[name]})
    with state_of(two) as state, pytest.raises(MachineError, match="etcd's answer has"):
        state.read("a")
