from __future__ import annotations

from collections import Counter
from itertools import chain

from hypothesis import given
from tests.support.ops.layers import layers

from cotswold.geometry import BlockLocal
from cotswold.ops.runs import BlockRun, all_runs, row_runs


def members(run: BlockRun) -> list[tuple[int, int]]:
    return [(run.y + i * run.dy, run.x + i * run.dx) for i in range(run.blocks)]


@given(layers())
def test_runs_cover_every_block_once(layer: BlockLocal) -> None:
    every = [(y, x) for y in range(layer.grid[0]) for x in range(layer.grid[1])]
    by_rows = chain.from_iterable(row_runs(layer, y) for y in range(layer.grid[0]))
    for runs in (all_runs(layer), by_rows):
        assert Counter(chain.from_iterable(members(run) for run in runs)) == Counter(every)


@given(layers())
def test_the_blocks_of_a_run_see_exactly_the_part_of_their_fields_inside_the_map(layer: BlockLocal) -> None:
    for run in all_runs(layer):
        for y, x in members(run):
            low, high = layer.y.padding_read(y, layer.input.height)
            left, right = layer.x.padding_read(x, layer.input.width)
            seen = (low, layer.y.size - high, left, layer.x.size - right)
            assert seen == (run.top, run.bottom, run.left, run.right)
