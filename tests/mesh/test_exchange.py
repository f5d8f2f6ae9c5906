"""Exchanges over real messages deliver the values of the whole map, on layouts of any kind."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.support.mesh.ranks import on_ranks
from torch import Tensor

from cotswold.errors import GeometryError
from cotswold.geometry import Box, ExchangePlan
from cotswold.mesh import Exchange, Mesh
from cotswold.mesh.transport import connect as connecting

PLANE = (9, 11)
RANKS = 4
LAYOUTS = 40


def _box(draw: random.Random) -> Box:
    """Draw a box of the plane; every fifth is empty."""
    if draw.random() < 0.2:
        return Box((0, 0), (0, 0))
    edges = [sorted(draw.sample(range(extent + 1), 2)) for extent in PLANE]
    return Box(tuple(one[0] for one in edges), tuple(one[1] for one in edges))


def _plan(seed: int) -> ExchangePlan:
    draw = random.Random(seed)
    return ExchangePlan(*(tuple(_box(draw) for _ in range(RANKS)) for _ in range(2)))


def _values(seed: int, box: Box, dtype: torch.dtype) -> Tensor:
    """Return whole numbers, whose sums are exact in every type."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 9, (3, 2, *box.shape), generator=generator).to(dtype)


def _wanted(parts: list[Tensor], plan: ExchangePlan, rank: int) -> Tensor:
    whole = torch.zeros(3, 2, *PLANE, dtype=parts[0].dtype)
    for part, box in zip(parts, plan.writes, strict=True):
        rows, columns = box.slices
        whole[:, :, rows, columns] += part
    rows, columns = plan.reads[rank].slices
    return whole[:, :, rows, columns]


WAYS = {"memory": 1, "Gloo": RANKS, "both": 2}
"""Number of hosts that the ranks seem to be on; messages between hosts use Gloo."""
EVERY_WAY = [
    pytest.param(way, marks=pytest.mark.skipif(
        hosts < RANKS and not hasattr(os, "memfd_create"), reason="memory without a name is Linux's"
    ))
    for way, hosts in WAYS.items()
]  # fmt: skip


@contextmanager
def _mesh_on(hosts: int) -> Iterator[Mesh]:
    """Yield a mesh of ranks that seem to be on ``hosts`` hosts."""
    real, here = connecting._this_host, dist.get_rank() * hosts // RANKS
    connecting._this_host = lambda: b"host %d" % here
    try:
        mesh = Mesh.of("2x2")
        assert len(mesh.channels) == RANKS // hosts - 1
        yield mesh
    finally:
        connecting._this_host = real


def _wrong(hosts: int, dtype: torch.dtype, last: bool) -> list[int]:
    """Return the layouts with a wrong exchange."""
    with _mesh_on(hosts) as mesh:
        return [seed for seed in range(LAYOUTS) if not _right(mesh, seed, dtype, last)]


def _right(mesh: Mesh, seed: int, dtype: torch.dtype, last: bool) -> bool:
    """True if the window and its gradient are those of the whole map."""
    plan = _plan(seed)
    parts = [_values(10 * seed + rank, box, dtype) for rank, box in enumerate(plan.writes)]
    own = parts[mesh.rank]
    if last:  # images last, as local layers have them
        own = own.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)
    own.requires_grad_()
    window = Exchange(mesh, plan)(own)
    given = [_values(1000 + 10 * seed + rank, box, dtype) for rank, box in enumerate(plan.reads)]
    window.backward(given[mesh.rank])  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert own.grad is not None
    right = torch.equal(window, _wanted(parts, plan, mesh.rank))
    return right and torch.equal(own.grad, _wanted(given, plan.adjoint, mesh.rank))


@pytest.mark.parametrize("last", [False, True], ids=["images first", "images last"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("way", EVERY_WAY)
def test_windows_are_sums_of_what_was_written_and_gradients_sums_of_what_was_read(
    way: str, dtype: torch.dtype, last: bool
) -> None:
    assert on_ranks(RANKS, _wrong, WAYS[way], dtype, last) == [[]] * RANKS


def _wrong_in_place(hosts: int) -> list[int]:
    """Return the layouts on which own pixels of overlapping windows are wrong after others' pixels were added
    in place."""
    with _mesh_on(hosts) as mesh:
        return _wrong_of(mesh)


def _wrong_of(mesh: Mesh) -> list[int]:
    found = []
    for seed in range(LAYOUTS):
        draw = random.Random(seed)
        y, x = draw.randint(0, PLANE[0]), draw.randint(0, PLANE[1])
        cuts = [Box((a, c), (b, d)) for a, b in ((0, y), (y, 9)) for c, d in ((0, x), (x, 11))]
        whole, reach = Box.whole(PLANE), draw.randint(0, 4)
        windows = [
            Box(tuple(at - reach for at in one.start), tuple(at + reach for at in one.stop)).intersect(whole)
            if one.size else Box((0, 0), (0, 0))
            for one in cuts
        ]  # fmt: skip
        plan = ExchangePlan(tuple(windows), tuple(cuts))
        parts = [_values(10 * seed + rank, box, torch.float64) for rank, box in enumerate(windows)]
        part, own = parts[mesh.rank].clone(), cuts[mesh.rank]
        if own.size:
            rows, columns = own.relative_to(windows[mesh.rank]).slices
            into = part[:, :, rows, columns]
        else:
            into = part.new_empty((3, 2, *own.shape))
        Exchange(mesh, plan).start(part, into=into).finish()
        if not torch.equal(into, _wanted(parts, plan, mesh.rank)):
            found.append(seed)
    return found


@pytest.mark.parametrize("way", EVERY_WAY)
def test_sums_are_made_in_the_memory_of_the_part_itself(way: str) -> None:
    assert on_ranks(RANKS, _wrong_in_place, WAYS[way]) == [[]] * RANKS


def _in_a_window_of_another_shape() -> str:
    boxes = (Box((0, 0), (2, 5)), Box((0, 5), (2, 8)))
    exchange = Exchange(Mesh.of("1x2"), ExchangePlan(boxes, (Box.whole((2, 8)),) * 2))
    part = torch.zeros(1, 1, *boxes[exchange.mesh.rank].shape)
    with pytest.raises(GeometryError) as raised:
        exchange.start(part, into=torch.zeros(1, 1, 2, 5))
    return str(raised.value)


def test_a_window_of_another_shape_is_refused() -> None:
    found = on_ranks(2, _in_a_window_of_another_shape)
    assert found[1] == "rank 1 got a window of shape (1, 1, 2, 5), but needs (1, 1, 2, 8)"


def _sent_ahead(count: int) -> int:
    """Return the number of right exchanges if rank 0 finishes all before rank 1, which has started them."""
    exchange = _to_rank_1(Mesh.of("1x2"), (2, 3))
    rank = exchange.mesh.rank
    pending = [exchange.start(_part(exchange, float(at))) for at in range(count)]
    if rank:
        dist.barrier()
    found = sum(bool(one.finish().eq(at).all()) for at, one in enumerate(pending))
    if not rank:
        dist.barrier()
    return found


def test_a_receiver_may_begin_many_exchanges_and_do_something_else_before_it_finishes_them() -> None:
    assert on_ranks(2, _sent_ahead, 24, timeout_s=20)[1] == 24


def _to_rank_1(mesh: Mesh, plane: tuple[int, int]) -> Exchange:
    """Return an exchange in which rank 0 has the whole plane, and rank 1 reads it."""
    none, whole = Box((0, 0), (0, 0)), Box.whole(plane)
    return Exchange(mesh, ExchangePlan((whole, none), (none, whole)))


def _part(exchange: Exchange, value: float) -> Tensor:
    return torch.full((1, 1, *exchange.part.shape), value)


def _mapped_mib() -> float:
    """Return the shared memory for messages that this process has mapped, in MiB."""
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:cotswold" in line]
    spans = [line.split()[0].split("-") for line in lines]
    return sum(int(stop, 16) - int(start, 16) for start, stop in spans) / (1 << 20)


def _mapped_after_abandoning(fail_on: int) -> float:
    """Return the additional mapped MiB of a rank after exchanges that failed between start and finish."""
    gc.collect()  # meshes of tests before
    before = _mapped_mib()
    exchange = _to_rank_1(Mesh.of("1x2"), (512, 512))
    for at in range(30):
        pending = exchange.start(_part(exchange, float(at)))
        try:
            if exchange.mesh.rank == fail_on:
                raise ZeroDivisionError
            pending.finish()
        except ZeroDivisionError:
            del pending
        dist.barrier()
    assert exchange.start(_part(exchange, 7.0)).finish().eq(7).all()
    return _mapped_mib() - before


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory without a name is Linux's")
@pytest.mark.parametrize("fail_on", [0, 1], ids=["sender", "receiver"])
def test_exchanges_that_break_off_between_start_and_finish_hold_no_memory(fail_on: int) -> None:
    assert max(on_ranks(2, _mapped_after_abandoning, fail_on)) <= 8


def _mapped_after(sizes_kib: tuple[int, ...]) -> float:
    """Return the additional mapped MiB of a rank after six exchanges of maps of each size."""
    gc.collect()  # meshes of tests before
    before = _mapped_mib()
    mesh = Mesh.of("1x2")
    for size in sizes_kib:
        exchange = _to_rank_1(mesh, (size, 256))
        for at in range(6):
            exchange.start(_part(exchange, float(at))).finish()
            dist.barrier()
    return _mapped_mib() - before


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory without a name is Linux's")
def test_messages_of_five_sizes_keep_little_more_memory_than_the_largest_needs() -> None:
    mib = (1, 12, 3, 7, 16)
    assert max(on_ranks(2, _mapped_after, tuple(1024 * one for one in mib))) <= 1.5 * max(mib)
    assert max(on_ranks(2, _mapped_after, (16 * 1024, *100 * (4,)))) <= 1


def _abandoned_when_freed_and_later() -> list[int]:
    """Return the abandoned exchanges after a pending one was freed, and after the next was started."""
    exchange = _to_rank_1(Mesh.of("1x2"), (8, 8))
    abandoned: list[int] = []
    transport = exchange.mesh.routes(torch.device("cpu")).transport(1 - exchange.mesh.rank, 1)
    abandon = transport.abandon

    def noted(tag: int) -> None:
        abandoned.append(tag)
        abandon(tag)

    transport.abandon = noted  # type: ignore[method-assign]  # a spy
    pending = exchange.start(_part(exchange, 1.0))
    del pending
    counts = [len(abandoned)]
    assert exchange.start(_part(exchange, 7.0)).finish().eq(7).all()
    return [*counts, len(abandoned)]


def test_an_exchange_that_nobody_holds_is_abandoned_by_whoever_starts_the_next() -> None:
    assert on_ranks(2, _abandoned_when_freed_and_later) == [[0, 1], [0, 1]]
