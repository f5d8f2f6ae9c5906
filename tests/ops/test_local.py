from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.ops import reference
from tests.support.ops.layers import LAYERS, ODD, PLAIN, layers, random_map, random_weights
from torch import Tensor

from cotswold import ops
from cotswold.errors import GeometryError, UserError
from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels.operands import map_strides
from cotswold.ops import batched
from cotswold.ops.products import for_each_band

MERGED = BlockLocal(MapShape(1, 12, 11), Window(5), Window(3), rows=1, columns=1, depth=2)
"""A layer so narrow that field rows are merged."""


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fill uninitialised memory with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def close(a: Tensor, b: Tensor, rtol: float = 1e-10) -> None:
    torch.testing.assert_close(a.to(torch.float64), b, rtol=rtol, atol=rtol * max(1.0, float(b.abs().max())))


@given(layers(), st.integers(1, 3))
def test_the_three_products_equal_their_references(layer: BlockLocal, images: int) -> None:
    x, y = random_map(layer.input, images), random_map(layer.output, images, seed=2)
    filters = random_weights(layer)
    close(ops.local_product(x, filters, layer), reference.local_product(x, filters, layer))
    close(ops.local_adjoint(y, filters, layer), reference.local_adjoint(y, filters, layer))
    close(ops.local_outer(y, x, layer), reference.local_outer(y, x, layer))


@given(layers(), st.sampled_from([0, 1000]), st.sampled_from([1, 1 << 20]))
def test_merging_field_rows_changes_nothing(layer: BlockLocal, wide_enough: int, scratch: int) -> None:
    x, y = random_map(layer.input, 2), random_map(layer.output, 2, seed=2)
    filters = random_weights(layer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batched, "WIDE_ENOUGH", wide_enough)
        patch.setattr(batched, "SCRATCH_ELEMENTS", scratch)
        close(batched.product(x, filters, layer), reference.local_product(x, filters, layer))
        close(batched.adjoint(y, filters, layer), reference.local_adjoint(y, filters, layer))
        close(batched.outer(y, x, layer), reference.local_outer(y, x, layer))


@given(layers())
def test_the_products_are_each_others_adjoints(layer: BlockLocal) -> None:
    x, y = random_map(layer.input, 2), random_map(layer.output, 2, seed=2)
    filters = random_weights(layer)
    through_output = (y * ops.local_product(x, filters, layer)).sum()
    close(through_output, (x * ops.local_adjoint(y, filters, layer)).sum())
    close(through_output, (filters * ops.local_outer(y, x, layer)).sum())


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("layer", [*LAYERS, MERGED])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_nothing_uninitialised_reaches_a_result(layer: BlockLocal, dtype: torch.dtype) -> None:
    x, y = random_map(layer.input, 3, dtype=dtype), random_map(layer.output, 3, seed=2, dtype=dtype)
    filters = random_weights(layer, dtype=dtype)
    rtol = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2**-7}[dtype]
    close(ops.local_product(x, filters, layer), reference.local_product(x, filters, layer), rtol)
    close(ops.local_adjoint(y, filters, layer), reference.local_adjoint(y, filters, layer), rtol)
    close(ops.local_outer(y, x, layer), reference.local_outer(y, x, layer), rtol)


def foreign_layouts(x: Tensor) -> dict[str, Tensor]:
    """Return the same values in other memory layouts."""
    wide = torch.full((x.shape[0] + 2, *x.shape[1:]), float("nan"), dtype=x.dtype)
    sliced = ops.images_last(wide)
    sliced[1:-1] = x
    return {
        "contiguous": x.contiguous(),
        "channels last": x.contiguous(memory_format=torch.channels_last),
        "images last": ops.images_last(x),
        "slice of a batch": sliced[1:-1],
        "turned": x.transpose(2, 3).contiguous().transpose(2, 3),
    }


@pytest.mark.parametrize("layer", LAYERS)
def test_strides_change_nothing(layer: BlockLocal) -> None:
    filters = random_weights(layer)
    x, y = random_map(layer.input, 3), random_map(layer.output, 3, seed=2)
    expected = ops.local_product(x, filters, layer), ops.local_adjoint(y, filters, layer)
    gradient = ops.local_outer(y, x, layer)
    for (name, like_x), like_y in zip(foreign_layouts(x).items(), foreign_layouts(y).values(), strict=True):
        assert torch.equal(ops.local_product(like_x, filters, layer), expected[0]), name
        assert torch.equal(ops.local_adjoint(like_y, filters, layer), expected[1]), name
        assert torch.equal(ops.local_outer(like_y, like_x, layer), gradient), name


def test_expanded_operands_and_gradients_of_stride_zero_are_read_right() -> None:
    x = random_map(PLAIN.input, 1).expand(4, -1, -1, -1)
    filters = random_weights(PLAIN).requires_grad_()
    out = ops.local_product(x, filters, PLAIN)
    (gradient,) = torch.autograd.grad(out.sum(), filters)
    close(gradient, reference.local_outer(torch.ones_like(out), x, PLAIN))


def test_a_window_of_a_larger_map_is_read_in_place() -> None:
    larger = ops.images_last(random_map(MapShape(3, 11, 12), 2))
    window, filters = larger[:, :, 2:10, 3:11], random_weights(PLAIN)
    assert ops.images_last(window) is window
    close(ops.local_product(window, filters, PLAIN), reference.local_product(window, filters, PLAIN))


@pytest.mark.parametrize("layer", LAYERS)
def test_no_images_give_empty_maps_and_a_gradient_of_zero(layer: BlockLocal) -> None:
    x, y = random_map(layer.input, 0), random_map(layer.output, 0)
    filters = random_weights(layer)
    assert ops.local_product(x, filters, layer).shape == y.shape
    assert ops.local_adjoint(y, filters, layer).shape == x.shape
    assert torch.equal(ops.local_outer(y, x, layer), torch.zeros_like(filters))


def test_results_have_their_images_last() -> None:
    x, y, filters = random_map(ODD.input, 3), random_map(ODD.output, 3), random_weights(ODD)
    for out in (ops.local_product(x, filters, ODD), ops.local_adjoint(y, filters, ODD)):
        assert out.permute(2, 3, 1, 0).is_contiguous()


def test_padding_is_not_multiplied_so_that_infinite_weights_there_do_no_harm() -> None:
    layer = BlockLocal(MapShape(1, 3, 3), Window(3, 1, 1, 1), Window(3, 1, 1, 1), 1, 1, 1)
    filters = random_weights(layer)
    filters[0, :, 0], filters[:, 0, :, 0] = torch.inf, torch.inf
    assert ops.local_product(random_map(layer.input, 2), filters, layer).isfinite().all()


def test_bfloat16_sums_of_many_terms_are_kept_in_float32() -> None:
    layer = BlockLocal(MapShape(4, 16, 16), Window(16), Window(16), 1, 1, 2)
    ones = torch.ones(layer.filters_shape, dtype=torch.bfloat16)
    x = torch.ones(2, 4, 16, 16, dtype=torch.bfloat16)  # bfloat16 alone would stop counting at 256
    assert torch.equal(
        ops.local_product(x, ones, layer), torch.full((2, 2, 1, 1), 1024.0, dtype=torch.bfloat16)
    )
    crowded = BlockLocal(MapShape(1, 32, 32), Window(16), Window(16), 1, 1, 4)
    y = torch.ones(1, 4, 17, 17, dtype=torch.bfloat16)
    back = ops.local_adjoint(y, torch.ones(crowded.filters_shape, dtype=torch.bfloat16), crowded)
    assert back[0, 0, 15, 15].item() == 1024


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x, y, f: ops.local_product(y, f, ODD), GeometryError, "local_product needs maps"),
        (lambda x, y, f: ops.local_adjoint(x, f, ODD), GeometryError, "local_adjoint needs maps"),
        (lambda x, y, f: ops.local_outer(x, y, ODD), GeometryError, "local_outer needs maps"),
        (lambda x, y, f: ops.local_product(x, f[1:], ODD), GeometryError, "needs filters"),
        (lambda x, y, f: ops.local_outer(y[1:], x, ODD), GeometryError, "equal image counts"),
        (lambda x, y, f: ops.local_product(x.float(), f, ODD), UserError, "one dtype"),
    ],
)
def test_operands_that_do_not_fit_are_named(
    call: Callable[[Tensor, Tensor, Tensor], Tensor], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        call(random_map(ODD.input, 2), random_map(ODD.output, 2), random_weights(ODD))


TALL = BlockLocal(MapShape(2, 61, 7), Window(5, 2, 3, 4), Window(3, 1, 1, 0), rows=1, columns=2, depth=3)
"""A layer so tall that a map with its images first is copied in bands."""


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("images", [1, 5, 33])
def test_a_tall_map_in_torchs_order_gives_the_same_bits(images: int, dtype: torch.dtype) -> None:
    x, filters = random_map(TALL.input, images, dtype=dtype), random_weights(TALL, dtype=dtype)
    biases = torch.randn(TALL.norms_shape, dtype=dtype)
    bands: list[slice] = []
    for_each_band(x, TALL, lambda *band: bands.append(band[2]))
    assert len(bands) > 1
    found, last = ops.local_product(x, filters, TALL), ops.images_last(x)
    assert torch.equal(found, ops.local_product(last, filters, TALL)) and map_strides(found) is not None
    close(found, reference.local_product(x.double(), filters.double(), TALL), 1e-5)
    activated = ops.local_layer(x, filters, biases, TALL, "tanh")
    assert torch.equal(activated, ops.local_layer(last, filters, biases, TALL, "tanh"))
