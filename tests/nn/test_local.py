"""Locally connected layers, compared with an independent computation: unfold, then einsum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from cotswold import ops
from cotswold.errors import GeometryError
from cotswold.geometry import BlockLocal
from cotswold.nn import LocallyConnected1d, LocallyConnected2d, LocallyConnected3d
from cotswold.ops import images_last

Layer = LocallyConnected1d | LocallyConnected2d | LocallyConnected3d


def windows(x: Tensor, layer: Layer) -> Tensor:
    """Return (image, channel, *grid, *kernel): every receptive field, copied out."""
    padding = layer.padding
    assert not isinstance(padding, str)
    x = F.pad(x, [side for p in reversed(padding) for side in (p, p)])
    for axis, (size, step) in enumerate(zip(layer.kernel_size, layer.stride, strict=True)):
        x = x.unfold(2 + axis, size, step)
    return x


def untied(x: Tensor, weight: Tensor, bias: Tensor | None, layer: Layer) -> Tensor:
    """Return the same responses from the documented layouts of weight and bias."""
    grid, out, channels = layer.grid, layer.out_channels, layer.in_channels
    fields = windows(x, layer)
    if len(grid) == 1:
        w = weight.view(*grid, *layer.kernel_size, channels, *layer.block, out)
        y = torch.einsum("ncxi,xicso->noxs", fields, w)
        b = None if bias is None else bias.view(*grid, *layer.block, out).permute(2, 0, 1)
    elif len(grid) == 2:
        w = weight.view(*grid, *layer.kernel_size, channels, *layer.block, out)
        y = torch.einsum("ncyxij,yxijcrso->noyrxs", fields, w)
        b = None if bias is None else bias.view(*grid, *layer.block, out).permute(4, 0, 2, 1, 3)
    else:
        fz, fy, fx = layer.kernel_size
        p, r, s = layer.block
        w = weight.view(*grid, fy, fx, fz, channels, r, s, p, out)
        y = torch.einsum("nczyxkij,zyxijkcrspo->nozpyrxs", fields, w)
        b = None if bias is None else bias.view(*grid, r, s, p, out).permute(6, 0, 5, 1, 3, 2, 4)
    y = y if b is None else y + b
    return y.reshape(x.shape[0], out, *layer.output_size)


def assert_same_responses_and_gradients(layer: Layer, images: int) -> None:
    torch.manual_seed(1)
    x = torch.randn(images, layer.in_channels, *layer.input_size, dtype=torch.float64, requires_grad=True)
    inputs = (x, *layer.parameters())
    y, expected = layer(x), untied(x, layer.weight, layer.bias, layer)
    torch.testing.assert_close(y, expected)
    weights = torch.randn_like(y)
    for got, wanted in zip(
        torch.autograd.grad(y, inputs, weights), torch.autograd.grad(expected, inputs, weights), strict=True
    ):
        torch.testing.assert_close(got, wanted)


@st.composite
def axes(draw: st.DrawFn) -> tuple[int, int, int, int, int]:
    """Draw extent, kernel, stride, padding and block of one axis."""
    kernel = draw(st.integers(1, 4))
    return (
        draw(st.integers(1, 9)),
        kernel,
        draw(st.integers(1, 3)),
        draw(st.integers(0, kernel - 1)),
        draw(st.integers(1, 3)),
    )


@settings(max_examples=150, deadline=None)
@given(axes(), axes(), st.integers(1, 3), st.integers(1, 3), st.integers(0, 3), st.booleans())
def test_responses_and_gradients_are_those_of_unfold_and_einsum(
    y: tuple[int, ...], x: tuple[int, ...], channels: int, out: int, images: int, bias: bool
) -> None:
    assume(all(extent + 2 * padding >= kernel for extent, kernel, _, padding, _ in (y, x)))
    size, kernel, stride, padding, block = zip(y, x, strict=True)
    layer = LocallyConnected2d(channels, out, size, kernel, stride, padding, bias, block, dtype=torch.float64)
    assert_same_responses_and_gradients(layer, images)


@pytest.mark.parametrize(
    "arguments", [{}, {"stride": 2, "padding": 2}, {"block": 3}, {"bias": False, "padding": 1}]
)
def test_sequences_are_those_of_unfold_and_einsum(arguments: dict[str, Any]) -> None:
    layer = LocallyConnected1d(3, 4, 11, 4, **arguments, dtype=torch.float64)
    assert_same_responses_and_gradients(layer, 2)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"stride": (2, 1, 2), "padding": (1, 0, 1)},
        {"block": (2, 1, 3), "padding": (1, 1, 0)},
        {"bias": False, "padding": (2, 0, 0)},
    ],
)
def test_volumes_are_those_of_unfold_and_einsum(arguments: dict[str, Any]) -> None:
    layer = LocallyConnected3d(2, 3, (4, 5, 6), (3, 2, 3), **arguments, dtype=torch.float64)
    assert_same_responses_and_gradients(layer, 2)


CONVOLUTIONS = [
    (LocallyConnected1d, nn.Conv1d(2, 3, 4, stride=2, padding=3), (13,)),
    (LocallyConnected2d, nn.Conv2d(3, 5, (3, 2), stride=(2, 1), padding=(1, 0)), (7, 8)),
    (LocallyConnected2d, nn.Conv2d(3, 5, (4, 3), padding="same", bias=False), (6, 5)),
    (LocallyConnected2d, nn.Conv2d(3, 5, 3, padding="valid"), (6, 5)),
    (LocallyConnected3d, nn.Conv3d(2, 3, (3, 2, 1), stride=(1, 2, 1), padding=(1, 1, 0)), (4, 5, 3)),
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize(("kind", "conv", "size"), CONVOLUTIONS)
def test_an_untied_convolution_answers_as_the_convolution_did(
    kind: type[Layer], conv: nn.Conv2d, size: tuple[int, ...]
) -> None:
    x = torch.randn(2, conv.in_channels, *size)
    torch.testing.assert_close(kind.from_conv(conv, size)(x), conv(x))


def test_an_untied_convolution_shares_no_memory_with_its_own_filters() -> None:
    layer = LocallyConnected2d.from_conv(nn.Conv2d(1, 1, 2), 3)
    with torch.no_grad():
        layer.weight[0, 0].fill_(7)
    assert not (layer.weight[1, 1] == 7).any()


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding_mode="reflect"),
    ],
)
def test_a_convolution_that_has_no_untied_twin_is_refused(conv: nn.Conv2d) -> None:
    with pytest.raises(GeometryError, match="groups=1, dilation=1"):
        LocallyConnected2d.from_conv(conv, 9)


def test_a_convolution_of_other_dimensions_is_refused_by_name() -> None:
    with pytest.raises(GeometryError, match="use LocallyConnected1d"):
        LocallyConnected2d.from_conv(nn.Conv1d(4, 4, 3), 9)


@pytest.mark.parametrize("other", [nn.Linear(4, 4), nn.ConvTranspose2d(4, 4, 3), "conv"])
def test_what_is_no_convolution_cannot_be_untied(other: Any) -> None:
    with pytest.raises(GeometryError, match=f"needs a torch.nn.Conv2d, got {type(other).__name__}"):
        LocallyConnected2d.from_conv(other, 9)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_a_lazy_convolution_is_untied_once_it_has_weights() -> None:
    conv = nn.LazyConv2d(4, 3)
    with pytest.raises(GeometryError, match="LazyConv2d has uninitialised weights; run it on one input"):
        LocallyConnected2d.from_conv(conv, 9)
    x = torch.randn(2, 3, 9, 9)
    expected = conv(x)
    torch.testing.assert_close(LocallyConnected2d.from_conv(conv, 9)(x), expected)


def test_a_block_multiplies_the_rows_and_columns_of_the_grid() -> None:
    layer = LocallyConnected2d(3, 8, 32, 8, stride=4, block=(4, 2))
    assert layer.grid == (7, 7)
    assert layer.output_size == (28, 14)
    assert layer.weight.shape == (7, 7, 8, 24, 64)
    assert layer.bias is not None and layer.bias.shape == (7, 7, 64)
    assert layer(torch.zeros(2, 3, 32, 32)).shape == (2, 8, 28, 14)


LAYERS = [
    LocallyConnected1d(3, 4, 9, 3, padding=1),
    LocallyConnected2d(3, 4, (7, 6), 3, padding=1, block=(2, 1)),
    LocallyConnected3d(3, 4, (3, 4, 5), 2, padding=1),
]


@pytest.mark.parametrize("layer", LAYERS)
def test_one_input_without_a_batch_dimension_is_answered_without_one(layer: Layer) -> None:
    x = torch.randn(2, 3, *layer.input_size)
    torch.testing.assert_close(layer(x[1]), layer(x)[1])


@pytest.mark.parametrize("layer", LAYERS)
def test_an_empty_batch_gives_an_empty_batch_and_gradients_of_zero(layer: Layer) -> None:
    y = layer(torch.zeros(0, 3, *layer.input_size))
    assert y.shape == (0, 4, *layer.output_size)
    (gradient,) = torch.autograd.grad(y.sum(), layer.weight)
    assert not gradient.any()


@pytest.mark.parametrize("layer", LAYERS)
def test_responses_do_not_depend_on_the_strides_of_the_input(layer: Layer) -> None:
    x = torch.randn(4, 3, *layer.input_size)
    expected = layer(x)
    reversed_axes = tuple(reversed(range(x.dim())))
    images_last = x.permute(reversed_axes).contiguous().permute(reversed_axes)
    spaced = torch.stack((x, x), -1)[..., 1]
    for same in (images_last, spaced, torch.cat((x, x))[4:], x.movedim(1, -1).contiguous().movedim(-1, 1)):
        torch.testing.assert_close(layer(same), expected)
    one = x[:1].expand(3, *x.shape[1:])
    torch.testing.assert_close(layer(one), expected[:1].expand(3, *expected.shape[1:]))


@pytest.mark.parametrize("bias", [True, False])
def test_the_next_layer_copies_nothing_because_the_images_stay_last(bias: bool) -> None:
    y = LocallyConnected2d(3, 4, (7, 6), 3, bias=bias)(torch.randn(5, 3, 7, 6))
    assert images_last(y).data_ptr() == y.data_ptr()


@pytest.mark.parametrize(
    "layer",
    [
        LocallyConnected1d(8, 64, 100, 5),
        LocallyConnected2d(8, 16, 16, 3, block=(2, 2)),
        LocallyConnected3d(8, 32, (3, 16, 16), 3),
    ],
    ids=["1d", "2d", "3d of one plane"],
)
def test_backward_allocates_the_gradient_of_filters_and_biases_and_nothing_else_of_their_size(
    layer: Layer,
) -> None:
    x = torch.randn(4, layer.in_channels, *layer.input_size)
    y = layer(x)  # the maps need no gradient
    weights = torch.randn_like(y)
    y.backward(weights, retain_graph=True)  # choose tiles and prepare the product
    layer.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        y.backward(weights)
    least = layer.weight.numel() * layer.weight.element_size()
    assert least > 2 * y.numel() * y.element_size()
    allocated = [
        each.nbytes()
        for each in seen.profiler.kineto_results.events()
        if each.name() == "[memory]" and each.nbytes() >= least
    ]
    assert len(allocated) == 1
    assert layer.weight.grad is not None and layer.bias is not None and layer.bias.grad is not None


def test_the_gradients_of_several_planes_are_those_of_each_plane_alone() -> None:
    torch.manual_seed(0)
    layer = LocallyConnected3d(2, 3, (5, 6, 6), 3)
    x = torch.randn(2, 2, 5, 6, 6)
    y = layer(x)
    weights = torch.randn_like(y)
    y.backward(weights)
    assert layer.weight.grad is not None and layer.bias is not None and layer.bias.grad is not None
    for plane in range(3):
        alone = LocallyConnected3d(2, 3, (3, 6, 6), 3)
        alone.load_state_dict({name: v[plane : plane + 1] for name, v in layer.state_dict().items()})
        alone(x[:, :, plane : plane + 3]).backward(weights[:, :, plane : plane + 1])
        assert alone.weight.grad is not None and alone.bias is not None and alone.bias.grad is not None
        assert torch.equal(alone.weight.grad[0], layer.weight.grad[plane])
        assert torch.equal(alone.bias.grad[0], layer.bias.grad[plane])


def test_an_input_of_another_dtype_is_refused_with_both_dtypes() -> None:
    words = (
        r"LocallyConnected2d has weights of torch\.float32, but got an input of torch\.float64; use x\.to\("
    )
    for enabled in (False, True):  # under autocast float64 stays what it is
        with pytest.raises(GeometryError, match=words), torch.autocast("cpu", enabled=enabled):
            LAYERS[1](torch.zeros(2, 3, 7, 6, dtype=torch.float64))
    with pytest.raises(GeometryError, match=r"an input of torch\.uint8; use x\.to\(torch\.float32\)$"):
        LAYERS[1](torch.zeros(2, 3, 7, 6, dtype=torch.uint8))


def test_what_is_no_tensor_is_refused_by_its_type() -> None:
    with pytest.raises(GeometryError, match=r"takes a torch\.Tensor, not ndarray; convert it"):
        LAYERS[1](np.zeros((2, 3, 7, 6), np.float32))


def test_whole_numbers_of_numpy_are_taken_as_python_has_them() -> None:
    layer = LocallyConnected2d(np.int64(3), np.int32(4), (np.int64(7), 6), np.uint8(3))  # type: ignore[arg-type]  # NumPy
    assert repr(layer) == repr(LocallyConnected2d(3, 4, (7, 6), 3))
    assert {type(size) for size in (layer.in_channels, *layer.input_size, *layer.kernel_size)} == {int}


def test_channels_last_inputs_are_taken() -> None:
    layer, x = LAYERS[1], torch.randn(4, 3, 7, 6)
    torch.testing.assert_close(layer(x.to(memory_format=torch.channels_last)), layer(x))


def test_same_padding_with_a_stride_is_that_of_zeros_around_the_map_the_odd_one_after_it() -> None:
    layer = LocallyConnected2d(2, 3, (11, 10), (4, 5), stride=(3, 2), padding="same")
    assert layer.output_size == (4, 5)
    padded = LocallyConnected2d(2, 3, (13, 13), (4, 5), stride=(3, 2))
    padded.load_state_dict(layer.state_dict())
    x = torch.rand(2, 2, 11, 10)
    torch.testing.assert_close(layer(x), padded(nn.functional.pad(x, (1, 2, 1, 1))))


@pytest.mark.parametrize("layer", LAYERS)
def test_first_values_are_those_of_a_convolution_with_the_same_fan_in(layer: Layer) -> None:
    torch.manual_seed(3)
    large = type(layer)(16, 64, layer.input_size, layer.kernel_size)
    bound = (16 * large.kernel_size[0] ** len(layer.kernel_size)) ** -0.5
    assert large.bias is not None
    for values in (large.weight, large.bias):
        assert 0.9 * bound < values.abs().max() <= bound
    assert abs(float(large.weight.detach().std()) / (bound / 3**0.5) - 1) < 0.05


def test_a_seed_gives_one_network_in_every_dtype_and_for_every_number_of_threads() -> None:
    def weight(dtype: torch.dtype) -> Tensor:
        torch.manual_seed(5)
        return LocallyConnected2d(3, 8, 16, 5, dtype=dtype).weight.detach()

    threads, alone = torch.get_num_threads(), weight(torch.float32)
    try:
        torch.set_num_threads(3)
        assert torch.equal(weight(torch.float32), alone)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(weight(torch.float64), alone.double())
    assert torch.equal(weight(torch.bfloat16), alone.bfloat16())


def test_a_layer_built_on_the_meta_device_is_filled_after_it_has_got_memory() -> None:
    with torch.device("meta"):
        layer = LocallyConnected2d(3, 8, 16, 5)
    assert layer.weight.is_meta
    torch.manual_seed(5)
    layer.to_empty(device="cpu").reset_parameters()
    torch.manual_seed(5)
    assert torch.equal(layer.weight, LocallyConnected2d(3, 8, 16, 5).weight)


@pytest.mark.parametrize("layer", LAYERS)
def test_complex_layers_have_the_derivatives_of_complex_convolutions(layer: Layer) -> None:
    small = type(layer)(1, 2, (3,) * len(layer.input_size), 2, padding=1, dtype=torch.complex128)
    assert all(values.imag.abs().min() > 0 for values in small.parameters())
    x = torch.randn(2, 1, *small.input_size, dtype=torch.complex128, requires_grad=True)
    inputs = (x, *small.parameters())
    y, expected = small(x), untied(x, small.weight, small.bias, small)
    torch.testing.assert_close(y, expected)
    weights = torch.randn_like(y)
    slopes = torch.autograd.grad(expected, inputs, weights)
    torch.testing.assert_close(torch.autograd.grad(y, inputs, weights), slopes)


def test_derivatives_of_complex_products_are_right_once_and_twice() -> None:
    layer = LocallyConnected2d(1, 2, 4, 2, padding=1, dtype=torch.complex128).geometry
    torch.manual_seed(2)
    x, y = (
        torch.randn(2, shape.channels, shape.height, shape.width, dtype=torch.complex128, requires_grad=True)
        for shape in (layer.input, layer.output)
    )
    filters = torch.randn(layer.filters_shape, dtype=torch.complex128, requires_grad=True)
    for function, inputs in (
        (ops.local_product, (x, filters)),
        (ops.local_adjoint, (y, filters)),
        (ops.local_outer, (y, x)),
    ):

        def product(
            a: Tensor, b: Tensor, function: Callable[[Tensor, Tensor, BlockLocal], Tensor] = function
        ) -> Tensor:
            return function(a, b, layer)

        assert torch.autograd.gradcheck(product, inputs, fast_mode=True)
        assert torch.autograd.gradgradcheck(product, inputs, fast_mode=True)


def test_shapes_can_be_followed_on_the_meta_device() -> None:
    layer = LocallyConnected2d(3, 8, 16, 5, block=(2, 2), device="meta")
    assert layer(torch.empty(4, 3, 16, 16, device="meta")).shape == (4, 8, 24, 24)


@pytest.mark.parametrize("layer", LAYERS)
def test_first_and_second_derivatives_are_right(layer: Layer) -> None:
    small = type(layer)(1, 2, (3,) * len(layer.input_size), 2, padding=1, dtype=torch.float64)
    x = torch.randn(2, 1, *small.input_size, dtype=torch.float64, requires_grad=True)
    bias = small.bias
    assert bias is not None

    def respond(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(small, {"weight": weight, "bias": bias}, (x,))
        return y

    inputs = (x, small.weight, bias)
    assert torch.autograd.gradcheck(respond, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(respond, inputs, fast_mode=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"kernel_size": 9}, "a receptive field 9 high does not fit a map 8 high"),
        ({"kernel_size": (3, 9)}, "a receptive field 9 wide does not fit a map 8 wide"),
        ({"kernel_size": 0}, "kernel_size must be one or 2 integers of at least 1, got 0"),
        ({"stride": 0}, "stride must be one or 2 integers of at least 1, got 0"),
        ({"padding": -1}, "padding must be one or 2 integers of at least 0, got -1"),
        ({"padding": 3}, "choose less padding than the size of the window"),
        ({"padding": "full"}, "padding must be integers, 'same' or 'valid', got 'full'"),
        ({"block": (2, 0)}, "block must be one or 2 integers of at least 1"),
        ({"input_size": (8, 8, 8)}, "input_size must be one or 2 integers of at least 1"),
        ({"input_size": 8.0}, "input_size must be one or 2 integers of at least 1, got 8.0"),
        ({"stride": True}, "stride must be one or 2 integers of at least 1, got True"),
        ({"out_channels": 0}, "out_channels must be an integer of at least 1, got 0"),
    ],
)
def test_what_does_not_fit_is_named_with_its_remedy(arguments: dict[str, Any], words: str) -> None:
    right = {"in_channels": 3, "out_channels": 4, "input_size": 8, "kernel_size": 3}
    with pytest.raises(GeometryError, match=words.replace("(", r"\(")):
        LocallyConnected2d(**right | arguments)


def test_a_volume_too_shallow_for_its_field_is_refused() -> None:
    with pytest.raises(GeometryError, match="a receptive field of depth 3 does not fit an input of depth 2"):
        LocallyConnected3d(1, 1, (2, 8, 8), 3)


@pytest.mark.parametrize("shape", [(2, 3, 7, 7), (2, 4, 7, 6), (3, 7), (1, 2, 3, 7, 6)])
def test_an_input_of_another_size_is_refused_with_both_sizes(shape: tuple[int, ...]) -> None:
    with pytest.raises(GeometryError, match=r"expects inputs of 3 x 7 x 6, .* but got"):
        LAYERS[1](torch.zeros(shape))


def test_the_repr_shows_everything_that_was_asked_for_and_the_size_that_comes_out() -> None:
    assert repr(LAYERS[1]) == (
        "LocallyConnected2d(3, 4, input_size=(7, 6), kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), "
        "bias=True, block=(2, 1), output_size=(14, 6))"
    )
