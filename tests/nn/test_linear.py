"""Fully connected layers by kernels, compared with torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.kernels.processors import narrower
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from cotswold import ops
from cotswold.kernels import products
from cotswold.kernels.machine import execution
from cotswold.kernels.products import run
from cotswold.nn import Flatten, Linear, convert_layers
from cotswold.ops.layers import fully_connected

LAYERS = [(64, 400, 400), (37, 71, 66), (16, 64, 129), (400, 65, 70), (100, 300, 64)]
"""Samples, inputs, outputs."""
layers = pytest.mark.parametrize("layer", LAYERS, ids=str)


@pytest.fixture(autouse=True)
def _small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fully_connected, "PRODUCTS_LEAST", 1)


def _values(
    layer: tuple[int, int, int], dtype: torch.dtype = torch.float64, samples_last: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    samples, inputs, outputs = layer
    random = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(shape, generator=random, dtype=torch.float64).to(dtype)
        for shape in ((samples, inputs), (outputs, inputs), (outputs,))
    )
    if samples_last:
        x = x.t().contiguous().t()
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


def _gradients(function: Any, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    out = function(*values)
    slopes = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (out, *torch.autograd.grad(out, values, slopes.to(out.dtype)))


@pytest.mark.parametrize("samples_last", [False, True])
@layers
def test_values_and_gradients_are_those_of_torch(layer: tuple[int, int, int], samples_last: bool) -> None:
    values = _values(layer, samples_last=samples_last)
    found = _gradients(fully_connected.linear, values)
    assert found[0].stride() == (1, layer[0])
    for got, expected in zip(found, _gradients(F.linear, values), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-11)


@layers
def test_errors_are_at_most_twice_those_of_torch(layer: tuple[int, int, int]) -> None:
    exact = _gradients(F.linear, _values(layer))
    values = _values(layer, torch.float32)
    theirs = _gradients(F.linear, values)
    for got, other, right in zip(_gradients(fully_connected.linear, values), theirs, exact, strict=True):
        least = 1e-7 * right.abs().max()
        assert (got - right).norm() <= 2 * (other - right).norm() + least * right.numel() ** 0.5


def _bits(layer: tuple[int, int, int]) -> list[Tensor]:
    run.READY.clear()
    found = _gradients(fully_connected.linear, _values(layer, torch.float32))
    return [one.detach().clone() for one in found]


@layers
def test_neither_threads_nor_vectors_change_a_bit(
    layer: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "FLOPS_A_THREAD", 1.0)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = _bits(layer)
        torch.set_num_threads(3)
        found = [_bits(layer)]
    finally:
        torch.set_num_threads(before)
    if narrower() is not None:
        monkeypatch.setattr(run, "processor_of", lambda *overrides: narrower())
        found.append(_bits(layer))
    for bits in found:
        assert all(map(torch.equal, alone, bits))
    run.READY.clear()


def test_only_the_wanted_gradients_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, calls = Linear(64, 70), []

    def counted(name: str, whole: Any) -> Any:
        def call(*args: Any) -> None:
            calls.append(name)
            whole(*args)

        return call

    for name in ("product", "outer"):
        monkeypatch.setattr(products, name, counted(name, getattr(run, name)))
    x = torch.rand(16, 64, requires_grad=True)
    layer.requires_grad_(False)(x).sum().backward()
    assert calls == ["product"] and x.grad is not None and layer.weight.grad is None
    layer.requires_grad_(True)(x.detach()).sum().backward()
    assert calls == ["product", "outer", "outer"]  # of weights, and of biases
    layer.bias.requires_grad_(False)
    layer(x.detach()).sum().backward()
    assert calls[3:] == ["outer"]


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ({}, (15, 64)),
        ({}, (0, 64)),
        ({}, (64,)),
        ({}, (4, 32, 64)),
        ({"out_features": 63}, (64, 64)),
        ({"in_features": 63}, (64, 63)),
        ({"dtype": torch.bfloat16}, (64, 64)),
    ],
    ids=str,
)
def test_torch_computes_every_other_input(
    arguments: dict[str, Any], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fully_connected, "_forward", None)
    torch.manual_seed(0)
    layer = Linear(**{"in_features": 64, "out_features": 70, **arguments})
    x = torch.randn(shape, dtype=arguments.get("dtype"), requires_grad=True)
    found = layer(x)
    assert torch.equal(found, F.linear(x, layer.weight, layer.bias))
    found.sum().backward()
    assert x.grad is not None and x.grad.shape == shape


def test_small_products_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fully_connected, "PRODUCTS_LEAST", 64 * 100 * 80)
    layer = Linear(100, 80)
    assert layer(torch.rand(63, 100)).is_contiguous()
    assert layer(torch.rand(64, 100)).t().is_contiguous()


def test_a_layer_without_biases_has_torchs_values() -> None:
    torch.manual_seed(0)
    layer, x = Linear(64, 64, bias=False), torch.randn(20, 64)
    torch.testing.assert_close(layer(x), x @ layer.weight.t())
    layer(x).square().sum().backward()
    expected = 2 * (x @ layer.weight.detach().t()).t() @ x
    torch.testing.assert_close(layer.weight.grad, expected, rtol=1e-4, atol=1e-4)


def test_weights_of_any_order_are_read() -> None:
    values = _values((20, 64, 65))
    transposed = values[0], values[1].detach().t().contiguous().t().requires_grad_(), values[2]
    for got, expected in zip(
        _gradients(fully_connected.linear, transposed), _gradients(F.linear, values), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-11)


def test_torch_computes_what_it_watches_or_transforms() -> None:
    torch.manual_seed(0)
    layer, x = Linear(64, 70), torch.randn(16, 64)
    expected = F.linear(x, layer.weight, layer.bias)
    with FlopCounterMode(display=False) as counter:
        layer(x)
    assert counter.get_total_flops() == 2 * 16 * 64 * 70
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    names: dict[str, Tensor] = dict(layer.named_parameters())

    def loss(values: dict[str, Tensor], x: Tensor) -> Tensor:
        found: Tensor = functional_call(layer, values, (x.expand(16, -1),)).sum()
        return found

    for_each = vmap(grad(loss), (None, 0))(names, x)
    torch.testing.assert_close(for_each["weight"][3], grad(loss)(names, x[3])["weight"])
    for_all = torch.compile(layer, backend="eager", fullgraph=True)(x)
    torch.testing.assert_close(for_all, expected)
    torch.testing.assert_close(torch.jit.script(layer)(x), expected)
    torch.testing.assert_close(torch.jit.trace(layer, x)(x), expected)  # type: ignore[no-untyped-call]  # untyped
    nodes = torch.export.export(layer, (x,)).graph.nodes
    assert [str(node.target) for node in nodes if node.op == "call_function"] == ["aten.linear.default"]
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))  # type: ignore[no-untyped-call]  # untyped
        found = torch.autograd.forward_ad.unpack_dual(layer(dual))  # type: ignore[no-untyped-call]  # untyped
    torch.testing.assert_close(found.tangent, layer.weight.sum(1).expand(16, -1))


def test_it_is_differentiable_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fully_connected, "FEATURES_LEAST", 1)
    values = _values((16, 5, 6))
    assert torch.autograd.gradcheck(fully_connected.linear, values)
    assert torch.autograd.gradgradcheck(fully_connected.linear, values)


def test_several_gradients_at_once_are_torchs() -> None:
    values = _values((16, 64, 65))
    out = fully_connected.linear(*values)
    slopes = torch.randn(3, *out.shape, dtype=out.dtype)
    many = torch.autograd.grad(out, values, slopes, is_grads_batched=True, retain_graph=True)
    for number in range(3):
        alone = torch.autograd.grad(out, values, slopes[number], retain_graph=True)
        for one, several in zip(alone, many, strict=True):
            torch.testing.assert_close(several[number], one, rtol=1e-12, atol=1e-11)


def test_a_result_may_change_in_place() -> None:
    torch.manual_seed(0)
    first, second = Linear(72, 64), Linear(64, 64)
    network = nn.Sequential(Flatten(), first, nn.ReLU(inplace=True), second)
    x = ops.images_last(torch.randn(16, 2, 6, 6)).requires_grad_()
    network(x).sum().backward()
    expected = F.linear(F.relu(F.linear(x.flatten(1), first.weight, first.bias)), second.weight).sum()
    found = torch.autograd.grad(expected, first.weight)[0]
    torch.testing.assert_close(first.weight.grad, found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(16, 2, 6, 5), (16, 5, 1, 1), (1, 3, 4, 2)], ids=str)
def test_a_flattened_map_keeps_its_samples_last(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    last = ops.images_last(x).requires_grad_()
    found = Flatten()(last)
    assert torch.equal(found, x.flatten(1)) and found.t().is_contiguous()
    slopes = torch.randn_like(x.flatten(1))
    for each in (slopes, slopes.t().contiguous().t()):
        gradient = torch.autograd.grad(found, last, each, retain_graph=True)[0]
        assert torch.equal(gradient, slopes.view(shape)) and gradient.permute(2, 3, 1, 0).is_contiguous()
    assert torch.autograd.gradcheck(Flatten(), last) and torch.autograd.gradgradcheck(Flatten(), last)


def test_torch_flattens_all_other_inputs() -> None:
    x = ops.images_last(torch.randn(16, 2, 6, 5))
    for layer, given in (
        (Flatten(), x.contiguous()),
        (Flatten(), x[:0]),
        (Flatten(0), x),
        (Flatten(2), x),
        (Flatten(), x[0]),
    ):
        theirs = nn.Flatten(layer.start_dim)(given)
        found = layer(given)
        assert torch.equal(found, theirs) and found.stride() == theirs.stride()
    assert torch.equal(torch.jit.script(Flatten())(x), x.flatten(1))
    compiled = torch.compile(Flatten(), backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), x.flatten(1))


def test_conversion_takes_both_layers_but_no_subclass() -> None:
    class Own(nn.Linear):
        pass

    network = convert_layers(nn.Sequential(nn.Flatten(), nn.Linear(72, 64), Own(64, 3)))
    assert [type(part) for part in network.children()] == [Flatten, Linear, Own]
