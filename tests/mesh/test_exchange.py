"""Exchanges over real messages bring what the whole map has, on layouts of any kind."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from tests.mesh.ranks import on_ranks
from torch import Tensor

from cotswold.errors import GeometryError
from cotswold.geometry import Box, ExchangePlan
from cotswold.mesh import Exchange, Mesh, channels

PLANE = (9, 11)
RANKS = 4
LAYOUTS = 40


def _box(draw: random.Random) -> Box:
    """Any box of the plane; every fifth is empty."""
    if draw.random() < 0.2:
        return Box((0, 0), (0, 0))
    edges = [sorted(draw.sample(range(extent + 1), 2)) for extent in PLANE]
    return Box(tuple(one[0] for one in edges), tuple(one[1] for one in edges))


def _plan(seed: int) -> ExchangePlan:
    draw = random.Random(seed)
    return ExchangePlan(*(tuple(_box(draw) for _ in range(RANKS)) for _ in range(2)))


def _values(seed: int, box: Box, dtype: torch.dtype) -> Tensor:
    """Whole numbers, whose sums no type rounds."""
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
"""How many hosts the ranks believe to be on: what is between hosts goes through Gloo."""
EVERY_WAY = [
    pytest.param(way, marks=pytest.mark.skipif(
        hosts < RANKS and not hasattr(os, "memfd_create"), reason="memory without a name is Linux's"
    ))
    for way, hosts in WAYS.items()
]  # fmt: skip


@contextmanager
def _mesh_on(hosts: int) -> Iterator[Mesh]:
    """A mesh of ranks that take themselves for those of so many hosts."""
    real, here = channels._place, dist.get_rank() * hosts // RANKS
    channels._place = lambda: b"host %d" % here
    try:
        mesh = Mesh.of("2x2")
        assert len(mesh.channels) == RANKS // hosts - 1
        yield mesh
    finally:
        channels._place = real


def _wrong(hosts: int, dtype: torch.dtype, last: bool) -> list[int]:
    """Layouts on which something is not as it should be."""
    with _mesh_on(hosts) as mesh:
        return [seed for seed in range(LAYOUTS) if not _right(mesh, seed, dtype, last)]


def _right(mesh: Mesh, seed: int, dtype: torch.dtype, last: bool) -> bool:
    """Whether the window and its gradient are those of the whole map."""
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
    """Layouts on which own pixels of overlapping windows, to which others' are added where they lie, are
    wrong."""
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
            rows, columns = own.within(windows[mesh.rank]).slices
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
    assert found[1] == "rank 1 has a window (1, 1, 2, 5), not (1, 1, 2, 8)"
