"""Messages between two processes, through shared memory and over TCP: complete, without deadlock."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cotswold.host.ipc.shared_memory import NAME, is_supported
from cotswold.host.ipc.shared_memory_channel import SharedMemoryChannel
from cotswold.host.ipc.tagged_messages import TaggedChannel
from cotswold.host.ipc.tcp_channel import MESSAGE_BYTES_MAX, TcpChannel
from cotswold.launch.watch.failure import is_peer_lost

Pair = tuple[TaggedChannel, TaggedChannel, socket.socket]


def _sockets(kind: type[TaggedChannel]) -> tuple[socket.socket, socket.socket]:
    if kind is SharedMemoryChannel:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        return ours, server.accept()[0]


@pytest.fixture(
    params=[
        pytest.param(SharedMemoryChannel, marks=pytest.mark.skipif(not is_supported(), reason="is Linux's")),
        TcpChannel,
    ]
)
def kind(request: pytest.FixtureRequest) -> type[TaggedChannel]:
    found: type[TaggedChannel] = request.param
    return found


@pytest.fixture
def pair(kind: type[TaggedChannel]) -> Pair:
    """Return two ends, and the second one's socket."""
    ours, theirs = _sockets(kind)
    return kind(ours, "rank 1", 5), kind(theirs, "rank 0", 5), theirs


def _send(end: TaggedChannel, tag: int, values: bytes) -> None:
    def fill(memory: memoryview) -> None:
        memory[:] = values

    end.send(tag, len(values), fill)


def _send_many(end: TaggedChannel, size: int) -> None:
    for tag in range(4, 10_000):
        _send(end, tag, bytes(size))


def _receive(end: TaggedChannel, tag: int) -> bytes:
    found = bytes(end.receive(tag))
    end.release(tag)
    return found


def _is_late(step: Callable[[], object]) -> threading.Thread:
    """Return a thread that runs a step, which does not end at once."""
    late = threading.Thread(target=step, daemon=True)
    late.start()
    late.join(0.2)
    assert late.is_alive()
    return late


def test_messages_arrive_whole_in_whatever_order_they_are_asked_for(pair: Pair) -> None:
    near, far, _ = pair
    sent = {tag: os.urandom(size) for tag, size in enumerate((5, 0, 1000, MESSAGE_BYTES_MAX, 1))}
    for tag, values in sent.items():
        _send(near, tag, values)
    for tag in sent:
        far.begin(tag)
    for tag in (4, 1, 3, 0, 2):
        assert _receive(far, tag) == sent[tag]


def test_a_sender_waits_for_a_receiver_that_has_not_begun_many_exchanges_that_are_finished(
    pair: Pair,
) -> None:
    near, far, _ = pair
    for tag in range(3 * near.AHEAD):
        _send(near, tag, b"values")
    for tag in range(near.AHEAD):
        near.finish(tag)
    late = _is_late(lambda: near.finish(near.AHEAD))
    for tag in range(near.AHEAD):
        far.begin(tag)
    late.join(10)
    assert not late.is_alive(), "begun, and none of them finished"


def test_no_exchange_that_the_receiver_has_begun_is_waited_for(pair: Pair) -> None:
    near, far, _ = pair
    for tag in range(50):
        far.begin(tag)
        _send(far, tag, b"")  # which says that it has begun
        _send(near, tag, b"%d" % tag)
    for tag in range(50):
        near.finish(tag)
    assert [_receive(far, tag) for tag in reversed(range(50))] == [b"%d" % tag for tag in reversed(range(50))]


def test_two_that_send_each_other_much_before_either_reads_hold_up_nobody(pair: Pair) -> None:
    near, far, _ = pair
    sent = os.urandom(MESSAGE_BYTES_MAX)

    def act(end: TaggedChannel) -> None:
        for tag in range(20):
            end.begin(tag)
            _send(end, tag, sent)

    ends = [threading.Thread(target=act, args=(end,), daemon=True) for end in (near, far)]
    for one in ends:
        one.start()
    for one in ends:
        one.join(10)
    assert not any(one.is_alive() for one in ends)
    assert all(_receive(end, tag) == sent for end in (near, far) for tag in range(20))


def test_what_comes_for_an_exchange_that_was_abandoned_is_dropped_and_others_are_not(pair: Pair) -> None:
    near, far, _ = pair
    far.begin(1)
    _send(near, 1, b"before")
    far.begin(2)
    far.abandon(1)
    far.abandon(2)
    _send(near, 2, b"after")
    far.begin(3)
    _send(near, 3, b"wanted")
    assert _receive(far, 3) == b"wanted"
    assert not far._arrived and not far._awaited and not far._abandoned


def test_a_peer_that_is_gone_is_named_and_what_it_said_before_is_heard(pair: Pair) -> None:
    near, far, connection = pair
    _send(far, 1, b"values")
    connection.shutdown(socket.SHUT_RDWR)
    assert _receive(near, 1) == b"values"
    with pytest.raises(ConnectionResetError, match="closed by peer: rank 1") as heard:
        near.receive(3)
    with pytest.raises(ConnectionResetError, match="closed by peer: rank 1") as said:
        _send_many(near, 1)  # TCP tells with the second
    assert is_peer_lost(heard.value) and is_peer_lost(said.value), "the ranks look for who is gone"
    near.abandon(4)


def test_a_peer_that_says_nothing_is_waited_for_no_longer_than_the_timeout(kind: type[TaggedChannel]) -> None:
    ours, theirs = _sockets(kind)
    with theirs, pytest.raises(TimeoutError, match="rank 1 sent nothing") as late:
        kind(ours, "rank 1", 0.05).receive(1)
    assert is_peer_lost(late.value)


def test_a_peer_that_hears_nothing_is_waited_for_no_longer_than_the_timeout(
    kind: type[TaggedChannel],
) -> None:
    ours, theirs = _sockets(kind)
    near = kind(ours, "rank 1", 0.05)
    with theirs, pytest.raises(TimeoutError, match="rank 1 received nothing"):
        _send_many(near, MESSAGE_BYTES_MAX if kind is TcpChannel else 1)


def test_a_forked_child_keeps_no_connection_of_its_parent_open(pair: Pair) -> None:
    near, _, connection = pair
    waiting, ending = os.pipe()
    child = os.fork()
    if not child:  # as a worker of a DataLoader
        os.close(ending)
        os.read(waiting, 1)
        os._exit(0)
    try:
        connection.close()  # as the kernel does when a process ends
        with pytest.raises(ConnectionResetError):
            near.receive(1)
    finally:
        os.close(ending)
        os.waitpid(child, 0)
        os.close(waiting)


def test_a_stream_takes_no_long_message_and_believes_none() -> None:
    ours, theirs = _sockets(TcpChannel)
    near = TcpChannel(ours, "rank 1", 5)
    with pytest.raises(ValueError, match="at most"):
        _send(near, 1, bytes(MESSAGE_BYTES_MAX + 1))
    theirs.sendall(bytes(8) + (1 << 40).to_bytes(8, "little") + bytes(8))
    with pytest.raises(ConnectionResetError, match="rank 1 sent an unknown message"):
        near.receive(0)
    theirs.close()


def test_a_stream_that_broke_off_amid_a_message_says_nothing_more() -> None:
    ours, theirs = _sockets(TcpChannel)
    near, far = TcpChannel(ours, "rank 1", 0.05), TcpChannel(theirs, "rank 0", 5)
    with pytest.raises(TimeoutError):
        _send_many(near, MESSAGE_BYTES_MAX)
    with pytest.raises(ConnectionResetError):
        _send(near, 10_000, b"the rest of another message")
    with pytest.raises(ConnectionResetError, match="connection closed by peer: rank 0"):
        far.receive(10_000)


@pytest.mark.skipif(not is_supported(), reason="memory without a name is Linux's")
class TestChannel:
    """Properties of shared memory only."""

    def _pair(self) -> tuple[SharedMemoryChannel, SharedMemoryChannel]:
        ours, theirs = _sockets(SharedMemoryChannel)
        return SharedMemoryChannel(ours, "rank 1"), SharedMemoryChannel(theirs, "rank 0")

    def test_memory_is_used_again_once_it_was_given_back_and_no_descriptor_stays(self) -> None:
        before, descriptors = _mapped(), _descriptors()
        near, far = self._pair()
        for tag in range(50):
            _send(near, tag, bytes(400_000))
            far.begin(tag)
            assert len(_receive(far, tag)) == 400_000
            near.finish(tag)
        assert _mapped() - before == 2, "one block, mapped at both ends"
        assert _descriptors() == descriptors + 2, "the two sockets"
        del near, far
        assert _mapped() == before

    def test_both_ends_unmap_what_is_used_no_more(self) -> None:
        before = _mapped()
        near, far = self._pair()
        for tag in range(1000):
            far.begin(tag)
            _send(near, tag, bytes(1 << 22 if tag < 3 else 9))
            _receive(far, tag)
            near.finish(tag)
        assert near.allocated_bytes == 1 << 16
        assert _mapped() - before == 2

    def test_abandoned_messages_leave_no_memory_lent(self) -> None:
        near, far = self._pair()
        for tag in range(50):
            far.begin(tag)
            _send(near, tag, bytes(1 << 20))
            near.abandon(tag)
            far.abandon(tag)
        assert near.allocated_bytes <= 3 << 20

    @pytest.mark.parametrize(
        "header",
        [
            pytest.param((1, 0, 1 << 16, 8, -1), id="a block larger than its file"),
            pytest.param((1, 0, -1, 8, -1), id="a block of a negative size"),
            pytest.param((1, 0, 4096, 4097, -1), id="a message larger than its block"),
            pytest.param((1, 0, 4096, -1, -1), id="a message of a negative size"),
            pytest.param((1, 7, 4096, 8, -1), id="a block that was never shown"),
            pytest.param((-1, 7, 0, 0, -1), id="a block given back that was never lent"),
            pytest.param((-2, 7, 0, 0, -1), id="a block dropped that was never shown"),
            pytest.param((1,), id="half a header"),
        ],
    )
    def test_what_no_channel_says_is_refused_and_leaves_no_descriptor(self, header: tuple[int, ...]) -> None:
        ours, theirs = _sockets(SharedMemoryChannel)
        near, before = SharedMemoryChannel(ours, "rank 1", 5), _descriptors()
        block = os.memfd_create("4096 bytes")
        os.ftruncate(block, 4096)
        shown = [] if 7 in header else [block]
        socket.send_fds(theirs, [struct.pack(f"={len(header)}q", *header)], shown)
        os.close(block)
        with pytest.raises(ConnectionResetError, match="rank 1 sent an unknown message"):
            near.receive(1)
        assert _descriptors() == before
        theirs.close()

    def test_a_message_that_cannot_be_written_leaves_nothing(self) -> None:
        near, far = self._pair()

        def fail(_: memoryview) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            near.send(1, 100, fail)
        assert near.allocated_bytes == 0
        _send(near, 2, b"next")
        far.begin(2)
        assert _receive(far, 2) == b"next"


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _mapped() -> int:
    """Return the blocks mapped by this process; both ends are here, so each counts twice."""
    return Path("/proc/self/maps").read_text().count(f"memfd:{NAME}")
