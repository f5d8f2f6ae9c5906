from __future__ import annotations

import pytest
import torch

from cotswold import ops
from cotswold.errors import GeometryError
from cotswold.ops.layout import Pitch, pitch_of


def test_a_contiguous_picture_is_copied_so_that_its_images_are_last() -> None:
    x = torch.randn(3, 2, 4, 5)
    y = ops.images_last(x)
    assert torch.equal(x, y)
    assert y.permute(2, 3, 1, 0).is_contiguous()


def test_a_map_with_images_last_is_handed_back_itself() -> None:
    x = ops.images_last(torch.randn(3, 2, 4, 5))
    assert ops.images_last(x) is x


def test_a_slice_of_batch_rows_and_columns_keeps_its_parents_pitch() -> None:
    parent = ops.images_last(torch.randn(6, 2, 4, 5))
    part = parent[1:4, :, 1:3, 2:4]
    assert ops.images_last(part) is part
    assert pitch_of(part) == Pitch(channel=6, row=5 * 2 * 6)


@pytest.mark.parametrize("shape", [(1, 2, 3, 4), (3, 1, 1, 1), (1, 1, 1, 1), (0, 2, 3, 4), (2, 1, 3, 1)])
def test_shapes_with_single_or_no_elements_have_a_layout(shape: tuple[int, ...]) -> None:
    y = ops.images_last(torch.randn(shape))
    assert pitch_of(y) is not None
    assert y.shape == shape


def test_expanded_pictures_are_copied_because_their_images_share_memory() -> None:
    x = torch.randn(1, 2, 3, 4).expand(5, 2, 3, 4)
    y = ops.images_last(x)
    assert torch.equal(x, y)
    assert y.untyped_storage().nbytes() == 5 * 2 * 3 * 4 * 4


def test_a_slice_of_channels_is_copied_because_its_columns_do_not_touch() -> None:
    part = ops.images_last(torch.randn(3, 4, 5, 6))[:, 1:3]
    assert pitch_of(part) is None
    assert torch.equal(ops.images_last(part), part)


def test_other_than_four_dimensions_are_refused() -> None:
    with pytest.raises(GeometryError, match="image, channel, y, x"):
        ops.images_last(torch.randn(2, 3, 4))
