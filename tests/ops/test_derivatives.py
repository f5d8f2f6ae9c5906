"""Derivatives of every operation: first and second, compiled, vmapped, and the refused mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.support.ops.layers import LAYERS, ODD, random_map, random_weights
from torch import Tensor
from torch.autograd import forward_ad

from cotswold import ops
from cotswold.errors import ForwardModeError
from cotswold.geometry import BlockLocal, MapShape, Smoothing, Window
from cotswold.ops.local import encode

SMALL = BlockLocal(MapShape(2, 4, 4), Window(3, 2, 1, 0), Window(2, 1, 0, 1), rows=1, columns=2, depth=1)
SMOOTHINGS = [Smoothing(3), Smoothing(3, keep=True), Smoothing(2, keep=True), Smoothing(2), Smoothing(1)]


def products(
    layer: BlockLocal, images: int = 2
) -> dict[str, tuple[Callable[..., Tensor], tuple[Tensor, Tensor]]]:
    """Return the three products of a layer with operands that require gradients."""
    x, y = (
        random_map(layer.input, images).requires_grad_(),
        random_map(layer.output, images, 2).requires_grad_(),
    )
    filters = random_weights(layer).requires_grad_()
    return {
        "local_product": (lambda a, b: ops.local_product(a, b, layer), (x, filters)),
        "local_adjoint": (lambda a, b: ops.local_adjoint(a, b, layer), (y, filters)),
        "local_outer": (lambda a, b: ops.local_outer(a, b, layer), (y, x)),
    }


def smoothing_calls(smoothing: Smoothing) -> list[Callable[[Tensor], Tensor]]:
    return [lambda x: ops.l2_pool(x, smoothing, 0.01), lambda x: ops.contrast_norm(x, smoothing, 0.7)]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", ["local_product", "local_adjoint", "local_outer"])
def test_first_derivatives_of_products_agree_with_differences(layer: BlockLocal, name: str) -> None:
    function, inputs = products(layer)[name]
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("name", ["local_product", "local_adjoint", "local_outer"])
def test_all_derivatives_of_products_agree_with_differences_one_by_one(name: str) -> None:
    function, inputs = products(SMALL)[name]
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_derivatives_of_pooling_and_normalisation_agree_with_differences(smoothing: Smoothing) -> None:
    x = random_map(MapShape(2, 6, 5), 2).requires_grad_()
    for function in smoothing_calls(smoothing):
        assert torch.autograd.gradcheck(function, (x,))
        assert torch.autograd.gradgradcheck(function, (x,), fast_mode=True)


def test_derivatives_below_the_floor_are_those_of_the_subtractive_step_over_the_floor() -> None:
    x = random_map(MapShape(2, 6, 6), 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: ops.contrast_norm(x, Smoothing(3, keep=True), 50.0), (x,))


@pytest.mark.parametrize("name", ["local_product", "local_adjoint", "local_outer"])
def test_the_custom_operations_keep_torchs_rules(name: str) -> None:
    _, (a, b) = products(ODD)[name]
    operation = getattr(torch.ops.cotswold, name).default
    torch.library.opcheck(operation, (a.detach(), b.detach(), list(encode(ODD))))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local_product", "local_adjoint", "local_outer"])
def test_products_compile_without_a_break_and_with_their_derivatives(name: str) -> None:
    function, inputs = products(ODD)[name]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    expected, got = function(*inputs), compiled(*inputs)
    torch.testing.assert_close(got, expected)
    upstream = torch.randn_like(expected)
    for a, b in zip(
        torch.autograd.grad(got, inputs, upstream),
        torch.autograd.grad(expected, inputs, upstream),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_pooling_and_normalisation_compile_without_a_break(index: int) -> None:
    function = smoothing_calls(Smoothing(3, keep=True))[index]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    x = random_map(MapShape(2, 7, 6), 2).requires_grad_()
    torch.testing.assert_close(compiled(x), function(x))
    (got,), (expected,) = torch.autograd.grad(compiled(x).sum(), x), torch.autograd.grad(function(x).sum(), x)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("name", ["local_product", "local_adjoint", "local_outer"])
@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0), (1, 2), (-1, None)])
def test_products_map_over_any_operand(name: str, dims: tuple[int | None, int | None]) -> None:
    function, inputs = products(ODD)[name]
    mapped = [
        x.detach() if dim is None else torch.stack([x.detach(), 2 * x.detach(), -x.detach()]).movedim(0, dim)
        for x, dim in zip(inputs, dims, strict=True)
    ]
    got = torch.func.vmap(function, in_dims=dims)(*mapped)
    one_by_one = [
        function(*(x if dim is None else x.select(dim, i) for x, dim in zip(mapped, dims, strict=True)))
        for i in range(3)
    ]
    torch.testing.assert_close(got, torch.stack(one_by_one))


def test_per_image_gradients_by_torch_func_equal_gradients_one_by_one() -> None:
    x, filters = random_map(ODD.input, 3), random_weights(ODD)

    def loss(filters: Tensor, image: Tensor) -> Tensor:
        z = ops.local_product(image[None], filters, ODD)
        return ops.contrast_norm(ops.l2_pool(z, Smoothing(2)), Smoothing(2, keep=True)).square().sum()

    got = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(filters, x)
    torch.testing.assert_close(got, torch.stack([torch.func.grad(loss)(filters, image) for image in x]))
    leaf = filters.clone().requires_grad_()
    torch.testing.assert_close(got[0], torch.autograd.grad(loss(leaf, x[0]), leaf)[0])


def unary_calls() -> dict[str, tuple[Callable[[Tensor], Tensor], Tensor]]:
    """Return every operation as a function of one tensor."""
    x, y, filters = random_map(ODD.input, 2), random_map(ODD.output, 2), random_weights(ODD)
    code = list(encode(ODD))
    return {
        "product by x": (lambda t: ops.local_product(t, filters, ODD), x),
        "product by filters": (lambda t: ops.local_product(x, t, ODD), filters),
        "adjoint": (lambda t: ops.local_adjoint(t, filters, ODD), y),
        "outer": (lambda t: ops.local_outer(y, t, ODD), x),
        "l2_pool": (lambda t: ops.l2_pool(t, Smoothing(3)), x),
        "contrast_norm": (lambda t: ops.contrast_norm(t, Smoothing(2, keep=True)), x),
        "a gradient": (torch.func.grad(lambda t: ops.local_product(t, filters, ODD).square().sum()), x),
        "the custom operation itself": (lambda t: torch.ops.cotswold.local_product(t, filters, code), x),
    }


@pytest.mark.parametrize("name", unary_calls())
def test_forward_mode_is_refused_and_never_silently_zero(name: str) -> None:
    function, x = unary_calls()[name]
    with forward_ad.dual_level(), pytest.raises(ForwardModeError, match="reverse mode"):
        function(forward_ad.make_dual(x, torch.ones_like(x)))  # type: ignore[no-untyped-call]  # torch's


@pytest.mark.parametrize("name", [name for name in unary_calls() if "itself" not in name])
@pytest.mark.parametrize("transform", [torch.func.jacfwd, lambda f: lambda x: torch.func.jvp(f, (x,), (x,))])
def test_forward_mode_of_torch_func_is_refused(name: str, transform: Callable[..., Any]) -> None:
    function, x = unary_calls()[name]
    with pytest.raises(ForwardModeError, match="reverse mode"):
        transform(function)(x)
