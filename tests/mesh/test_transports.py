"""The contract of every transport, on two ranks: shared memory, our sockets, torch's messages."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.support.mesh.ranks import on_ranks
from torch import Tensor

from cotswold.errors import GeometryError
from cotswold.host.ipc.shared_memory import is_supported
from cotswold.host.token import Token
from cotswold.launch.watch.failure import is_peer_lost
from cotswold.mesh import Mesh
from cotswold.mesh.transport import connect as connecting
from cotswold.mesh.transport.transport import Expected, Transport

EVERY = [
    pytest.param("memory", marks=pytest.mark.skipif(not is_supported(), reason="is Linux's")),
    "sockets",
    "group",
]
EVEN = [torch.float64, torch.float32, torch.bfloat16, torch.int16]


@contextmanager
def _transport(kind: str) -> Iterator[tuple[Mesh, Transport]]:
    """Yield the transport of a kind to the only other rank."""
    real = connecting._this_host
    if kind != "memory":
        connecting._this_host = lambda: b"host %d" % dist.get_rank()
    if kind == "group":
        os.environ[connecting.SOCKETS_SWITCH] = "0"
    try:
        mesh = Mesh.of("1x2")
        routes = mesh.routes(torch.device("cpu"))
        assert (len(mesh.channels), len(mesh.streams)) == ((kind == "memory"), (kind == "sockets"))
        yield mesh, routes.transport(1 - mesh.rank, 1)
    finally:
        connecting._this_host = real
        os.environ.pop(connecting.SOCKETS_SWITCH, None)


def _exchange(mesh: Mesh, transport: Transport, sent: Tensor, room: Tensor, in_place: bool = False) -> int:
    """Start an exchange of one message each way; return its tag."""
    tag, other = mesh.next_tag(), 1 - mesh.rank
    transport.send(tag, {other: sent}, {other: Expected(room, in_place)})
    return tag


def _finished(mesh: Mesh, transport: Transport, tag: int) -> Tensor:
    values = transport.receive(tag, 1 - mesh.rank).clone()
    transport.release(tag, 1 - mesh.rank)
    transport.finish(tag)
    return values


def _views(seed: int, dtype: torch.dtype) -> list[Tensor]:
    """Return views of any strides, one of them empty."""
    whole = (torch.arange(7 * 9 * 5).reshape(7, 9, 5) + seed).to(dtype)
    return [whole[1:5, ::2], whole.permute(2, 0, 1)[1:], whole[:0], whole, whole[3, 4, 2], whole.mT]


def _in_any_order(kind: str) -> None:
    with _transport(kind) as (mesh, transport):
        for dtype in EVEN:
            sent, wanted = _views(mesh.rank, dtype), _views(1 - mesh.rank, dtype)
            tags = [
                _exchange(mesh, transport, one, torch.empty(one.shape, dtype=dtype), in_place=number % 2 == 0)
                for number, one in enumerate(sent)
            ]
            for at in (3, 0, 5, 1, 4, 2) if mesh.rank else (2, 5, 4, 3, 1, 0):
                assert torch.equal(_finished(mesh, transport, tags[at]), wanted[at])


@pytest.mark.parametrize("kind", EVERY)
def test_messages_of_any_strides_types_and_sizes_arrive_whole_whatever_the_order_of_receiving(
    kind: str,
) -> None:
    on_ranks(2, _in_any_order, kind)


def _many(kind: str) -> None:
    with _transport(kind) as (mesh, transport):
        count = 40
        tags = [
            _exchange(mesh, transport, torch.full((100,), float(at)), torch.empty(100)) for at in range(count)
        ]
        if mesh.rank:
            dist.barrier()  # the other is to finish all first
        for at in reversed(range(count)):
            assert _finished(mesh, transport, tags[at]).eq(at).all()
        if not mesh.rank:
            dist.barrier()


@pytest.mark.parametrize("kind", EVERY)
def test_many_exchanges_are_open_at_once(kind: str) -> None:
    on_ranks(2, _many, kind)


def _one_way(kind: str) -> None:
    with _transport(kind) as (mesh, transport):
        tags = [mesh.next_tag() for _ in range(20)]
        for tag in tags:
            if mesh.rank:
                transport.send(tag, {}, {0: Expected(torch.empty(10))})
            else:
                transport.send(tag, {1: torch.full((10,), float(tag))}, {})
        if mesh.rank:
            dist.barrier()
        for tag in tags:
            if mesh.rank:
                assert transport.receive(tag, 0).eq(tag).all()
                transport.release(tag, 0)
            elif kind == "group":
                continue
            transport.finish(tag)
        if not mesh.rank:
            dist.barrier()
            if kind == "group":  # Gloo sends when the receiver is there
                for tag in tags:
                    transport.finish(tag)


@pytest.mark.parametrize("kind", EVERY)
def test_a_sender_finishes_exchanges_that_the_receiver_has_begun_and_does_not_finish(kind: str) -> None:
    on_ranks(2, _one_way, kind, timeout_s=20)


def _of_another_size(kind: str) -> str:
    with _transport(kind) as (mesh, transport):
        tag = _exchange(mesh, transport, torch.ones(7 + mesh.rank), torch.empty(7))
        if mesh.rank:
            assert transport.receive(tag, 0).eq(1).all()
            transport.release(tag, 0)
            transport.finish(tag)
            return ""
        with pytest.raises(GeometryError) as refused:
            transport.receive(tag, 1)
        transport.abandon(tag)
        return str(refused.value)


@pytest.mark.parametrize("kind", EVERY[:2])
def test_a_message_of_another_size_is_refused_and_not_read_as_what_it_is_not(kind: str) -> None:
    assert on_ranks(2, _of_another_size, kind)[0] == (
        "rank 1 sent 32 bytes, but 28 were expected; "
        "every rank must have the same number of images, of the same type"
    )


def _abandoned(kind: str) -> int:
    """Return the exchanges that hold resources after most were abandoned by one rank or by both."""
    with _transport(kind) as (mesh, transport):
        size = 3000
        for number in range(30):
            tag = _exchange(mesh, transport, torch.full((size, 2), float(number))[:, 0], torch.empty(size))
            if number % 3 == 2 or (number % 3 == 1 and mesh.rank):
                assert _finished(mesh, transport, tag).eq(number).all()
            else:
                transport.abandon(tag)
        held = [
            getattr(transport, name)
            for name in ("_open", "_abandoned", "_sent", "_expected")
            if hasattr(transport, name)
        ]
        for end in (*mesh.channels.values(), *mesh.streams.values()):
            held += [end._arrived, end._awaited, end._abandoned]
        return sum(map(len, held))


@pytest.mark.parametrize("kind", EVERY)
def test_abandoned_exchanges_hold_nothing_and_later_ones_are_right(kind: str) -> None:
    assert on_ranks(2, _abandoned, kind) == [0, 0]


def _rank_of_two(rank: int, store: str, kind: str, told: Connection) -> None:
    """Let rank 1 exit while rank 0 waits for it; rank 0 reports its error."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, 2),  # type: ignore[attr-defined]  # torch exports it untyped
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=20),
    )
    with _transport(kind) as (mesh, transport):
        tag = _exchange(mesh, transport, torch.ones(5), torch.empty(5))
        assert _finished(mesh, transport, tag).eq(1).all()
        if rank:
            os._exit(0)
        try:
            tag = _exchange(mesh, transport, torch.ones(5), torch.empty(5))
            _finished(mesh, transport, tag)
        except (RuntimeError, OSError) as error:
            transport.abandon(tag)
            told.send((type(error).__name__, str(error), is_peer_lost(error)))
            os._exit(0)


@pytest.mark.parametrize("kind", EVERY)
def test_a_rank_that_has_died_is_noticed_and_its_exchanges_can_be_abandoned(kind: str) -> None:
    spawning = multiprocessing.get_context("spawn")
    hears, told = spawning.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        ranks = [spawning.Process(target=_rank_of_two, args=(rank, store, kind, told)) for rank in range(2)]
        for one in ranks:
            one.start()
        try:
            assert hears.poll(60)
            _, text, lost = hears.recv()
        finally:
            for one in ranks:
                one.join(10)
                one.kill()
                one.join()
    assert lost and (kind == "group" or "rank 1" in text)


def _near_of_each(apart: int | None) -> tuple[list[int], list[int]]:
    if dist.get_rank() == apart:
        os.environ[connecting.SWITCH] = "0"
    try:
        mesh = Mesh.of("1x3")
        return sorted(mesh.channels), sorted(mesh.streams)
    finally:
        os.environ.pop(connecting.SWITCH, None)


@pytest.mark.skipif(not is_supported(), reason="memory without a name is Linux's")
def test_ranks_of_one_host_have_channels_to_each_other_and_need_no_streams() -> None:
    assert on_ranks(3, _near_of_each, None) == [([1, 2], []), ([0, 2], []), ([0, 1], [])]


@pytest.mark.skipif(not is_supported(), reason="memory without a name is Linux's")
def test_a_rank_that_wants_no_shared_memory_has_streams() -> None:
    assert on_ranks(3, _near_of_each, 1) == [([2], [1]), ([], [0, 2]), ([0], [1])]


def _with_tokens(tokens: tuple[str, ...], by: str) -> list[int]:
    token = tokens[dist.get_rank()]
    with _several_hosts(), pytest.MonkeyPatch.context() as patch:
        if by == "environment":
            patch.setenv("COTSWOLD_TOKEN", token)
            return sorted(Mesh.of("1x3").streams)
        patch.setenv("COTSWOLD_TOKEN", "c" * 32)
        return sorted(Mesh.of("1x3", token=Token(token)).streams)


@contextmanager
def _several_hosts() -> Iterator[None]:
    real = connecting._this_host
    connecting._this_host = lambda: b"host %d" % dist.get_rank()
    try:
        yield
    finally:
        connecting._this_host = real


@pytest.mark.parametrize("by", ["environment", "argument"])
def test_ranks_with_another_token_have_no_stream(by: str) -> None:
    assert on_ranks(3, _with_tokens, ("a" * 32, "b" * 32, "a" * 32), by) == [[2], [], [0]]


def _unreachable(who: int) -> list[int]:
    def refused(*_: object) -> None:
        raise ConnectionRefusedError

    with pytest.MonkeyPatch.context() as patch, _several_hosts():
        patch.setattr(connecting, "ANSWER_SECONDS", 0.5)
        if dist.get_rank() == who:
            patch.setattr(connecting, "call_tcp", refused)
        return sorted(Mesh.of("1x3").streams)


def test_ranks_that_cannot_reach_each_other_have_no_stream_and_go_on_by_their_group() -> None:
    assert on_ranks(3, _unreachable, 1) == [[2], [2], [0, 1]]
