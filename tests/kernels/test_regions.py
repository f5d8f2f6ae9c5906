from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.operations import processors
from tests.ops.layers import layers

from cotswold.geometry import BlockLocal, Box, MapShape, Region
from cotswold.ops.layout import empty_map
from cotswold.ops.products import adjoint, adjoint_at, in_regions, product, product_of

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
    assert in_regions(x)
    product_of(x, filters, layer, region, part)
    for by in range(layer.grid[0]):
        for bx in range(layer.grid[1]):
            rows = slice(by * layer.rows, (by + 1) * layer.rows)
            columns = slice(bx * layer.columns, (bx + 1) * layer.columns)
            found = part[:, :, rows, columns]
            if region.holds(by, bx):
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
    meant = torch.tensor([[region.holds(i, j) for j in range(extents[1])] for i in range(extents[0])])
    assert torch.equal(part[:, :, meant], whole[:, :, meant])
    assert part[:, :, ~meant].isnan().all()


@given(data=st.data(), layer=layers())
@settings(max_examples=100, deadline=None)
def test_a_region_and_the_rest_are_everything_once(data: st.DataObject, layer: BlockLocal) -> None:
    region = Region(data.draw(boxes(layer.grid)))
    for y, x in Box.whole(layer.grid).points():
        assert region.holds(y, x) != region.rest.holds(y, x)
