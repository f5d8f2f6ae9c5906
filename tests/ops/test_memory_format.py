from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.kernels.operations import DTYPES, processors
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from cotswold import ops
from cotswold.errors import ForwardModeError, GeometryError
from cotswold.kernels.machine import execution
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.maps import layout as copies
from cotswold.kernels.operands import MapStrides, map_strides


def test_a_contiguous_image_is_copied_so_that_its_images_are_last() -> None:
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
    assert map_strides(part) == MapStrides(channel=6, column=2 * 6, row=5 * 2 * 6)


@pytest.mark.parametrize("shape", [(1, 2, 3, 4), (3, 1, 1, 1), (1, 1, 1, 1), (0, 2, 3, 4), (2, 1, 3, 1)])
def test_shapes_with_single_or_no_elements_have_a_layout(shape: tuple[int, ...]) -> None:
    y = ops.images_last(torch.randn(shape))
    assert map_strides(y) is not None
    assert y.shape == shape


def test_expanded_images_are_copied_because_their_images_share_memory() -> None:
    x = torch.randn(1, 2, 3, 4).expand(5, 2, 3, 4)
    y = ops.images_last(x)
    assert torch.equal(x, y)
    assert y.untyped_storage().nbytes() == 5 * 2 * 3 * 4 * 4


def test_a_slice_of_channels_is_copied_because_its_columns_do_not_touch() -> None:
    part = ops.images_last(torch.randn(3, 4, 5, 6))[:, 1:3]
    assert map_strides(part) is None
    assert torch.equal(ops.images_last(part), part)


def test_other_than_four_dimensions_are_refused() -> None:
    with pytest.raises(GeometryError, match="image, channel, y, x"):
        ops.images_last(torch.randn(2, 3, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 9), st.integers(1, 11))
@settings(max_examples=60, deadline=None)
def test_a_map_of_any_shape_is_itself_in_either_order(
    dtype: torch.dtype, images: int, channels: int, height: int, width: int
) -> None:
    x = torch.randn(images, channels, height, width).to(dtype)
    last = ops.images_last(x)
    assert map_strides(last) is not None and torch.equal(last, x)
    first = ops.images_first(last)
    assert first.is_contiguous() and torch.equal(first, x)


@pytest.fixture
def threads_of_this_test() -> Iterator[None]:
    """Restore torch's number of threads after the test."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads_of_this_test")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_map_of_many_positions_is_itself_in_either_order_on_any_number_of_threads(threads: int) -> None:
    torch.set_num_threads(threads)
    x = torch.randn(37, 5, 61, 67)
    assert torch.equal(ops.images_last(x), x)
    assert torch.equal(ops.images_first(ops.images_last(x)), x)


@pytest.mark.parametrize("processor", processors(), ids=lambda one: one.isa)
@pytest.mark.parametrize("dtype", DTYPES)
@given(
    st.integers(1, 40),
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(1, 11),
    st.sampled_from([0, 3]),
    st.integers(1, 3),
)
@settings(max_examples=40, deadline=None)
def test_vectors_of_any_width_copy_every_number_and_nothing_beside_them(
    dtype: torch.dtype,
    processor: Processor,
    images: int,
    channels: int,
    height: int,
    width: int,
    apart: int,
    threads: int,
) -> None:
    x = torch.randn(images, channels, height, width).to(dtype)
    memory = torch.full((height, width, channels, images + apart), torch.nan, dtype=dtype)
    last = memory.permute(3, 2, 0, 1)[:images]
    back = torch.full_like(x, torch.nan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "SERIAL_BELOW", 1)
        for map_, to_last in ((x, True), (back, False)):
            copies.copy(map_, last, to_last, processor, threads)
    assert torch.equal(last, x) and torch.equal(back, x)
    assert memory[..., images:].isnan().all()


def test_a_slice_of_a_batch_and_a_padded_map_come_back_in_torchs_order() -> None:
    parent = ops.images_last(torch.randn(20, 3, 6, 5))
    for part in (parent[3:15], parent[:, :, 1:4, 2:5], parent[:, 1:2], parent[::2]):
        found = ops.images_first(part)
        assert found.is_contiguous() and torch.equal(found, part)


def test_images_of_a_larger_tensor_are_read_where_they_lie() -> None:
    parent = torch.randn(9, 4, 6, 5)
    for part in (parent[::2], parent[1:], parent[:, 1:3], parent[..., 1:]):
        assert torch.equal(ops.images_last(part), part)


@pytest.mark.parametrize("order", [ops.images_last, ops.images_first])
def test_an_order_keeps_torchs_rules_and_hands_gradients_on(order: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(5, 2, 3, 4, dtype=torch.float64)
    x = (ops.images_last(x) if order is ops.images_first else x).requires_grad_()
    assert gradcheck(order, (x,)) and gradgradcheck(lambda x: order(x) ** 2, (x,))
    mapped = torch.vmap(order)(torch.stack([x, 2 * x]))
    assert torch.equal(mapped, torch.stack([x, 2 * x]))
    with pytest.raises(ForwardModeError):
        torch.func.jvp(order, (x.detach(),), (x.detach(),))


def test_images_first_hands_back_what_is_so_and_refuses_other_shapes() -> None:
    x = torch.randn(3, 2, 4, 5)
    assert ops.images_first(x) is x
    with pytest.raises(GeometryError, match="image, channel, y, x"):
        ops.images_first(torch.randn(2, 3, 4))
