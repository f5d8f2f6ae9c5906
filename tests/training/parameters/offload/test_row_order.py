from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.training.parameters.offload.row_order import Visit, block_rows, window


@st.composite
def layers(draw: st.DrawFn) -> BlockLocal:
    size, step = draw(st.integers(1, 9)), draw(st.integers(1, 11))
    low, high = draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))
    height = draw(st.integers(1, 40))
    assume(height + low + high >= size)
    return BlockLocal(MapShape(1, height, 3), Window(size, step, low, high), Window(2), 1, 1, 1)


def covering(layer: BlockLocal, row: int) -> list[int]:
    """Return the block rows whose fields hold a row of the input map, by checking each."""
    fields = [layer.y.reads(block, layer.input.height) for block in range(layer.grid[0])]
    return [block for block, (first, stop) in enumerate(fields) if first <= row < stop]


def rows_of(visits: tuple[Visit, ...]) -> list[int]:
    return [
        row for visit in visits if visit.strip for row in range(visit.strip.rows.start, visit.strip.rows.stop)
    ]


@given(layers(), st.booleans())
def test_every_block_row_passes_once_and_every_row_of_the_map_is_in_one_strip(
    layer: BlockLocal, descending: bool
) -> None:
    visits = block_rows(layer, descending)
    order = list(range(layer.grid[0]))
    assert [visit.row for visit in visits] == (order[::-1] if descending else order)
    assert sorted(rows_of(visits)) == list(range(layer.input.height))
    assert sorted(row for visit in visits for row in visit.finished) == order


@given(layers(), st.booleans())
def test_all_block_rows_that_cover_a_strip_are_there_when_it_is_decoded(
    layer: BlockLocal, descending: bool
) -> None:
    there: set[int] = set()
    for visit in block_rows(layer, descending):
        there.add(visit.row)
        if visit.strip:
            rows = range(visit.strip.rows.start, visit.strip.rows.stop)
            needed = {block for row in rows for block in covering(layer, row)}
            held = range(visit.strip.blocks.start, visit.strip.blocks.stop)
            assert needed <= set(held) <= there
        there -= set(visit.finished)


@given(layers(), st.booleans())
def test_the_blocks_of_a_strip_see_what_they_see_in_the_whole_map(
    layer: BlockLocal, descending: bool
) -> None:
    for visit in block_rows(layer, descending):
        if visit.strip is None:
            continue
        rows, blocks, part = visit.strip.rows, visit.strip.blocks, visit.strip.layer
        for block in range(blocks.start, blocks.stop):
            first, stop = layer.y.reads(block, layer.input.height)
            whole = max(first, rows.start), min(stop, rows.stop)
            seen = part.y.reads(block - blocks.start, part.input.height)
            assert (seen[0] + rows.start, seen[1] + rows.start) == whole
            hidden = part.y.padding_read(block - blocks.start, part.input.height)[0]
            assert hidden == whole[0] - (block * layer.y.stride - layer.y.pad_before)


@given(layers())
def test_no_more_rows_are_held_than_cover_one_row_of_the_map_and_its_strip(layer: BlockLocal) -> None:
    most = max(len(covering(layer, row)) for row in range(layer.input.height))
    assert (
        most
        <= window(layer)
        <= most + 1 + layer.y.pad_before // layer.y.stride + layer.y.pad_after // layer.y.stride
    )
