"""Messages through memory that two ranks share: whole, in any order, and no memory kept that nobody needs."""

from __future__ import annotations

import os
import socket
import struct
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.mesh.ranks import on_ranks

from cotswold.errors import GeometryError
from cotswold.launch.failure import peer_lost
from cotswold.mesh import Mesh, channels
from cotswold.mesh.channels import AHEAD, Channel

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory without a name is Linux's")


def _pair() -> tuple[Channel, Channel, socket.socket]:
    """Two ends, and the second one's socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(ours, "rank 1"), Channel(theirs, "rank 0"), theirs


def _mapped() -> int:
    """Blocks that this process has mapped; both ends are here, so each counts twice."""
    return Path("/proc/self/maps").read_text().count("memfd:cotswold message")


def _descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int16], ids=str)
def test_views_of_any_strides_arrive_whole_in_whatever_order_they_are_asked_for(dtype: torch.dtype) -> None:
    near, far, _ = _pair()
    whole = torch.arange(7 * 9 * 5).reshape(7, 9, 5).to(dtype)
    views = {1: whole[1:5, ::2], 2: whole.permute(2, 0, 1)[1:], 3: whole[:0], 4: whole, 5: whole[3, 4, 2]}
    for tag, view in views.items():
        near.send(tag, view)
    for tag in (4, 1, 5, 3, 2):
        assert torch.equal(far.receive(tag, views[tag]), views[tag])
        far.release(tag)


def test_what_is_sent_may_change_at_once() -> None:
    near, far, _ = _pair()
    values = torch.ones(100_000)
    near.send(1, values)
    values.zero_()
    assert far.receive(1, values).eq(1).all()


def test_memory_is_used_again_once_it_was_given_back_and_no_descriptor_stays() -> None:
    near, far, _ = _pair()
    before, descriptors = _mapped(), _descriptors()
    values = torch.randn(100_000)
    for tag in range(50):
        near.send(tag, values)
        assert torch.equal(far.receive(tag, values), values)
        far.release(tag)
        near.settle(tag)
    assert _mapped() - before == 2, "one block, mapped at both ends"
    assert _descriptors() == descriptors
    del near, far
    assert _mapped() == before


def test_a_sender_waits_for_a_receiver_that_is_far_behind_but_not_within_its_open_exchanges() -> None:
    near, far, _ = _pair()
    values = torch.ones(8)
    for tag in range(3 * AHEAD):
        near.send(tag, values)
    for tag in range(AHEAD):
        near.settle(tag)
    late = threading.Thread(target=near.settle, args=(AHEAD,), daemon=True)
    late.start()
    late.join(0.2)
    assert late.is_alive(), "one too many is behind"
    far.receive(0, values)
    far.release(0)
    late.join(10)
    assert not late.is_alive()


def test_a_peer_that_is_gone_is_named_and_what_it_said_before_is_heard() -> None:
    near, far, connection = _pair()
    values = torch.ones(8)
    far.send(1, values)
    near.send(2, values)  # which it never reads
    connection.close()
    assert torch.equal(near.receive(1, values), values)
    near.release(1)
    with pytest.raises(ConnectionResetError, match="closed by peer: rank 1") as heard:
        near.receive(3, values)
    with pytest.raises(ConnectionResetError, match="closed by peer: rank 1") as said:
        near.send(4, values)
    assert peer_lost(heard.value) and peer_lost(said.value), "the ranks look for who is gone"


def test_a_peer_that_says_nothing_is_waited_for_no_longer_than_the_timeout() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 50_000))
    with theirs, pytest.raises(TimeoutError, match="rank 1 sent nothing") as late:
        Channel(ours, "rank 1").receive(1, torch.ones(1))
    assert peer_lost(late.value)


@pytest.mark.parametrize("sent", [7, 9])
def test_a_message_of_another_size_is_refused_and_not_read_as_what_it_is_not(sent: int) -> None:
    near, far, _ = _pair()
    near.send(1, torch.ones(sent))
    with pytest.raises(GeometryError, match=f"rank 0 sent {4 * sent} bytes where 32 were expected"):
        far.receive(1, torch.ones(8))


def test_a_block_that_is_used_again_does_not_count_for_the_exchange_before() -> None:
    near, far, _ = _pair()
    values = torch.ones(8)
    near.send(1, values)
    far.receive(1, values)
    far.release(1)
    near.send(2, values)  # in the block of the first
    near.settle(1)
    assert not near._overdue


def _near_of_each(apart: int | None) -> list[int]:
    mesh = Mesh.of("1x3")
    if mesh.rank == apart:
        os.environ[channels.SWITCH] = "0"
    try:
        return sorted(mesh.channels)
    finally:
        os.environ.pop(channels.SWITCH, None)


def test_ranks_of_one_host_have_channels_to_each_other() -> None:
    assert on_ranks(3, _near_of_each, None) == [[1, 2], [0, 2], [0, 1]]


def test_a_rank_that_wants_none_has_none() -> None:
    assert on_ranks(3, _near_of_each, 1) == [[2], [], [0]]


def _lost_though_a_child_lives() -> str:
    """What rank 0 hears of rank 1, which has a forked child and ends."""
    mesh = Mesh.of("1x2")
    (channel,) = mesh.channels.values()
    if mesh.rank == 0:
        with pytest.raises(ConnectionResetError) as lost:
            channel.receive(1, torch.ones(1))
        dist.barrier()
        return str(lost.value)
    waiting, ending = os.pipe()
    child = os.fork()
    if not child:  # as a worker of a DataLoader
        os.close(ending)
        os.read(waiting, 1)
        os._exit(0)
    channel._connection.close()  # as the kernel does when a process ends
    dist.barrier()
    os.close(ending)
    os.waitpid(child, 0)
    os.close(waiting)
    return ""


def test_a_rank_that_ends_is_missed_though_its_forked_child_lives() -> None:
    assert on_ranks(2, _lost_though_a_child_lives)[0] == "connection closed by peer: rank 1"
