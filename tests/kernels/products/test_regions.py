from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.kernels.operations import processors
from tests.support.ops.layers import layers

from cotswold.geometry import BlockLocal, Box, MapShape, Region, Window
from cotswold.kernels.microkernels.kinds import ADJOINT, PRODUCT
from cotswold.kernels.operands import required_map_strides
from cotswold.kernels.products import autotune
from cotswold.kernels.products.problem import Problem
from cotswold.ops.memory_format import empty_map
from cotswold.ops.products import adjoint, adjoint_at, has_regions, product, product_of

pytestmark = pytest.mark.skipif(not processors(), reason="kernels have no code for this processor")


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, int]) -> Box:
    edges = [sorted(draw(st.tuples(*[st.integers(0, extent)] * 2))) for extent in shape]
    return Box(tuple(one[0] for one in edges), tuple(one[1] for one in edges))


def poisoned(like: torch.Tensor, images: int, shape: MapShape) -> torch.Tensor:
    return empty_map(like, images, shape).fill_(torch.nan)


def some(shape: MapShape, images: int) -> torch.Tensor:
    return empty_map(torch.empty(0), images, shape).normal_()


@given(data=st.data(), layer=layers(), images=st.sampled_from([1, 5, 16, 33]))
@settings(max_examples=40, deadline=None)
def test_blocks_of_a_region_respond_as_in_the_whole_and_others_stay_untouched(
    data: st.DataObject, layer: BlockLocal, images: int
) -> None:
    region = Region(data.draw(boxes(layer.grid)), data.draw(st.booleans()))
    x, filters = some(layer.input, images), torch.randn(layer.filters_shape)
    whole, part = product(x, filters, layer), poisoned(x, images, layer.output)
    assert has_regions(x)
    product_of(x, filters, layer, region, part)
    for by in range(layer.grid[0]):
        for bx in range(layer.grid[1]):
            rows = slice(by * layer.rows, (by + 1) * layer.rows)
            columns = slice(bx * layer.columns, (bx + 1) * layer.columns)
            found = part[:, :, rows, columns]
            if region.contains(by, bx):
                assert torch.equal(found, whole[:, :, rows, columns])
            else:
                assert found.isnan().all()


@given(data=st.data(), layer=layers(), images=st.sampled_from([1, 5, 16, 33]))
@settings(max_examples=40, deadline=None)
def test_positions_of_a_region_are_decoded_as_in_the_whole_and_others_stay_untouched(
    data: st.DataObject, layer: BlockLocal, images: int
) -> None:
    extents = layer.input.height, layer.input.width
    region = Region(data.draw(boxes(extents)), data.draw(st.booleans()))
    y, filters = some(layer.output, images), torch.randn(layer.filters_shape)
    whole, part = adjoint(y, filters, layer), poisoned(y, images, layer.input)
    adjoint_at(y, filters, layer, region, part)
    meant = torch.tensor([[region.contains(i, j) for j in range(extents[1])] for i in range(extents[0])])
    assert torch.equal(part[:, :, meant], whole[:, :, meant])
    assert part[:, :, ~meant].isnan().all()


def test_the_work_of_a_product_is_that_of_its_region() -> None:
    layer = BlockLocal(MapShape(2, 13, 12), Window(3, 1), Window(3, 1), 1, 1, 8)
    x, y = some(layer.input, 16), some(layer.output, 16)
    whole = Problem(PRODUCT, layer, 16, "float32", required_map_strides(x), required_map_strides(y))
    strip = Region(Box((0, 0), (layer.grid[0], 1)))
    few, most = (replace(whole, region=one).flops for one in (strip, strip.complement))
    assert few == pytest.approx(whole.flops / layer.grid[1])
    assert few + most == pytest.approx(whole.flops)
    border, back = Region(Box((0, 0), (13, 3))), replace(whole, kind=ADJOINT)
    assert replace(back, region=border).flops == pytest.approx(back.flops / 4)


def test_nothing_is_measured_on_a_strip_of_little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "choose", lambda *_: pytest.fail("it was measured"))
    layer = BlockLocal(MapShape(4, 64, 64), Window(5, 1), Window(5, 1), 1, 1, 16)
    x, y = some(layer.input, 16), some(layer.output, 16)
    product_of(x, torch.randn(layer.filters_shape), layer, Region(Box((0, 0), (1, 60))), y)


@given(data=st.data(), layer=layers())
@settings(max_examples=100, deadline=None)
def test_a_region_holds_the_points_of_its_box_or_all_others_and_the_rest_the_opposite(
    data: st.DataObject, layer: BlockLocal
) -> None:
    box, outside = data.draw(boxes(layer.grid)), data.draw(st.booleans())
    (top, left), (bottom, right) = box.start, box.stop
    meant = torch.zeros(layer.grid, dtype=torch.bool)
    meant[top:bottom, left:right] = True
    meant ^= outside
    region = Region(box, outside)
    for one, expected in ((region, meant), (region.complement, ~meant)):
        down, across = layer.grid
        assert [[one.contains(y, x) for x in range(across)] for y in range(down)] == expected.tolist()
