from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.ops.layers import layers

from cotswold import ops
from cotswold.geometry import BlockLocal, Box


@given(data=st.data(), layer=layers(), seed=st.integers(0, 9))
def test_a_box_of_blocks_has_the_filters_of_the_whole(
    data: st.DataObject, layer: BlockLocal, seed: int
) -> None:
    edges = [sorted(data.draw(st.tuples(*[st.integers(0, count)] * 2))) for count in layer.grid]
    blocks = Box(tuple(one[0] for one in edges), tuple(one[1] for one in edges))
    whole = ops.random_filters(layer, seed, 1)
    assert torch.equal(ops.random_filters(layer, seed, 1, blocks=blocks), whole[blocks.slices])
