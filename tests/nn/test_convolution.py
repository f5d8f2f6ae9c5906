"""Convolutions by kernels, compared with torch's."""

from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
import torch
from tests.support.kernels.processors import narrower
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from cotswold import ops
from cotswold.errors import GeometryError, UserError
from cotswold.kernels import convolutions
from cotswold.kernels.compile import jobs
from cotswold.kernels.convolutions import gradient
from cotswold.kernels.machine import execution
from cotswold.kernels.operands import map_strides
from cotswold.kernels.products import run
from cotswold.nn import BatchNorm2d, Conv2d, Flatten, MaxPool2d, convert_layers
from cotswold.ops.layers import convolution

LAYERS: list[Any] = [
    # images, channels, height, width, neurons, field, stride, padding
    (16, 1, 9, 8, 10, (5, 5), 1, 2),
    (64, 10, 7, 7, 20, (5, 5), 1, 2),
    (37, 3, 11, 6, 7, (3, 2), (2, 1), (1, 0)),
    (20, 16, 6, 6, 33, (3, 3), 1, 1),
    (100, 2, 5, 5, 4, (1, 1), 2, 0),
    (17, 64, 4, 3, 2, (2, 3), 3, 1),
    (16, 5, 1, 4, 3, (3, 3), 1, 1),
    (16, 6, 5, 1, 1, (5, 5), (1, 2), 4),
]
layers = pytest.mark.parametrize("layer", LAYERS, ids=str)


def _values(layer: Any, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    images, channels, height, width, neurons, field, *_ = layer
    random = torch.Generator().manual_seed(0)
    shapes = (images, channels, height, width), (neurons, channels, *field), (neurons,)
    x, weight, bias = (
        torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in shapes
    )
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


def _gradients(function: Any, values: tuple[Tensor, ...], layer: Any) -> tuple[Tensor, ...]:
    out = function(*values, layer[6], layer[7])
    slopes = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (out, *torch.autograd.grad(out, values, slopes.to(out.dtype)))


@layers
def test_values_and_gradients_are_those_of_torch(layer: Any) -> None:
    values = _values(layer)
    for got, expected in zip(
        _gradients(ops.conv2d, values, layer), _gradients(F.conv2d, values, layer), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-11)


@layers
def test_errors_are_at_most_twice_those_of_torch(layer: Any) -> None:
    exact = _gradients(F.conv2d, _values(layer), layer)
    values = _values(layer, torch.float32)
    theirs = _gradients(F.conv2d, values, layer)
    for got, other, right in zip(_gradients(ops.conv2d, values, layer), theirs, exact, strict=True):
        least = 1e-7 * right.abs().max()
        assert (got - right).norm() <= 2 * (other - right).norm() + least * right.numel() ** 0.5


def _bits(layer: Any) -> list[Tensor]:
    run.READY.clear()
    jobs.READY.clear()
    return [one.detach().clone() for one in _gradients(ops.conv2d, _values(layer, torch.float32), layer)]


@layers
def test_neither_threads_nor_vectors_change_a_bit(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "FLOPS_A_THREAD", 1.0)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = _bits(layer)
        torch.set_num_threads(3)
        shared = _bits(layer)
    finally:
        torch.set_num_threads(before)
    monkeypatch.setattr(gradient, "SUMS_MOST", 24)
    parts = _bits(layer)
    found = [shared, parts]
    if narrower() is not None:
        monkeypatch.setattr(gradient, "this_processor", narrower)
        found.append(_bits(layer))
    for bits in found:
        assert all(map(torch.equal, alone, bits))


def test_a_result_has_its_images_last_and_keeps_them_through_a_network() -> None:
    seen = []
    network = nn.Sequential(
        Conv2d(1, 4, 3, padding=1), BatchNorm2d(4), MaxPool2d(2), nn.ReLU(), nn.Dropout(0.5), Conv2d(4, 6, 3)
    )
    for part in network:
        part.register_forward_hook(lambda part, args, out: seen.append(out))
    network(torch.rand(20, 1, 8, 8))
    assert [map_strides(out) is not None for out in seen] == [True] * 6


def test_small_batches_and_large_maps_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "POSITIONS_MOST", 36)
    weight = torch.rand(2, 1, 3, 3)
    for images, side, ours in ((15, 8, False), (16, 8, True), (16, 9, False)):
        found = ops.conv2d(torch.rand(images, 1, side, side), weight)
        assert (map_strides(found) is not None) == ours


@pytest.mark.parametrize(
    ("changed", "shape"),
    [
        ({"groups": 2}, (16, 4, 8, 8)),
        ({"dilation": 2}, (16, 4, 8, 8)),
        ({"padding": 1, "padding_mode": "reflect"}, (16, 4, 8, 8)),
        ({"padding": "same"}, (16, 4, 8, 8)),
        ({"padding": 5}, (16, 4, 8, 8)),
        ({"bias": False}, (16, 4, 8, 8)),
        ({"dtype": torch.bfloat16}, (16, 4, 8, 8)),
        ({}, (4, 8, 8)),
    ],
    ids=str,
)
def test_every_setting_of_torch_is_accepted(changed: dict[str, Any], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer = Conv2d(4, 6, 3, **changed)
    theirs = nn.Conv2d(4, 6, 3, **changed)
    theirs.load_state_dict(layer.state_dict())
    x = torch.randn(shape, dtype=changed.get("dtype"))
    torch.testing.assert_close(layer(x), theirs(x))


def test_torch_computes_what_it_watches_or_transforms() -> None:
    torch.manual_seed(0)
    layer, x = Conv2d(2, 3, 3, padding=1), torch.randn(16, 2, 5, 5)
    expected = F.conv2d(x, layer.weight, layer.bias, padding=1)
    with FlopCounterMode(display=False) as counter:
        layer(x)
    assert counter.get_total_flops() == 2 * 16 * 25 * 3 * 2 * 9
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    names: dict[str, Tensor] = dict(layer.named_parameters())

    def loss(values: dict[str, Tensor], x: Tensor) -> Tensor:
        found: Tensor = functional_call(layer, values, (x.expand(16, -1, -1, -1),)).sum()
        return found

    for_each = vmap(grad(loss), (None, 0))(names, x)
    alone = grad(loss)(names, x[3])
    torch.testing.assert_close(for_each["weight"][3], alone["weight"], rtol=1e-4, atol=1e-4)
    for_all = torch.compile(layer, backend="eager", fullgraph=True)(x)
    torch.testing.assert_close(for_all, expected)
    torch.testing.assert_close(torch.jit.script(layer)(x), expected)
    torch.testing.assert_close(torch.jit.trace(layer, x)(x), expected)  # type: ignore[no-untyped-call]  # untyped
    nodes = torch.export.export(layer, (x,)).graph.nodes
    assert [str(node.target) for node in nodes if node.op == "call_function"] == ["aten.conv2d.default"]
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))  # type: ignore[no-untyped-call]  # untyped
        found = torch.autograd.forward_ad.unpack_dual(layer(dual))  # type: ignore[no-untyped-call]  # untyped
    torch.testing.assert_close(found.tangent, F.conv2d(torch.ones_like(x), layer.weight, padding=1))


def test_it_is_differentiable_twice() -> None:
    values = _values((16, 2, 4, 4, 2, (3, 2), 1, 1))

    def convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ops.conv2d(x, weight, bias, (2, 1), (1, 0))

    assert torch.autograd.gradcheck(convolve, values, fast_mode=True)
    assert torch.autograd.gradgradcheck(convolve, values, fast_mode=True)


def test_several_gradients_at_once_are_torchs() -> None:
    values = _values((16, 2, 4, 4, 2, (3, 2), 1, 1))
    out = ops.conv2d(*values, padding=1)
    slopes = torch.randn(3, *out.shape, dtype=out.dtype)
    many = torch.autograd.grad(out, values, slopes, is_grads_batched=True, retain_graph=True)
    alone = torch.autograd.grad(out, values, slopes[1])
    for one, several in zip(alone, many, strict=True):
        torch.testing.assert_close(several[1], one, rtol=1e-12, atol=1e-11)


def test_only_the_wanted_gradients_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Conv2d(1, 2, 3)
    calls: list[int] = []
    whole = convolutions.filter_gradient

    def counted(*args: Any) -> tuple[Tensor, Tensor]:
        calls.append(1)
        return whole(*args)

    monkeypatch.setattr(convolutions, "filter_gradient", counted)
    x = torch.rand(16, 1, 5, 5, requires_grad=True)
    layer.requires_grad_(False)(x).sum().backward()
    assert not calls and x.grad is not None and layer.weight.grad is None
    layer.requires_grad_(True)(x.detach()).sum().backward()
    assert len(calls) == 1


def test_another_number_of_strides_is_refused() -> None:
    with pytest.raises(GeometryError, match="stride must be one or two integers"):
        ops.conv2d(torch.rand(16, 1, 5, 5), torch.rand(1, 1, 3, 3), stride=(1, 1, 1))


def test_a_converted_network_keeps_its_state_and_its_results() -> None:
    torch.manual_seed(0)

    class Own(nn.Conv2d):
        pass

    network = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Own(4, 3, 1),
        nn.Flatten(),
    )
    theirs, parameters = copy.deepcopy(network), list(network.parameters())
    assert convert_layers(network) is network
    kinds = [type(part) for part in network]
    assert kinds == [Conv2d, BatchNorm2d, nn.ReLU, MaxPool2d, Own, Flatten]
    assert all(one is other for one, other in zip(parameters, network.parameters(), strict=True))
    x = torch.randn(16, 2, 8, 8)
    for _ in range(2):
        got, expected = network(x), theirs(x)
        torch.testing.assert_close(got, expected)
        got.square().sum().backward()
        expected.square().sum().backward()
    for one, other in zip(network.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
    assert network.state_dict().keys() == theirs.state_dict().keys()
    torch.testing.assert_close(dict(network.state_dict()), dict(theirs.state_dict()))
    network.eval()
    torch.testing.assert_close(network(x), theirs.eval()(x))


def test_batch_normalisation_is_scriptable_and_takes_any_order() -> None:
    layer, x = BatchNorm2d(3).eval(), torch.randn(8, 3, 4, 5)
    for maps in (x, ops.images_last(x), x.to(memory_format=torch.channels_last)):
        torch.testing.assert_close(layer(maps), nn.BatchNorm2d(3).eval()(x))
    torch.testing.assert_close(torch.jit.script(layer)(x), layer(x))


def test_torch_computes_while_a_transform_is_active_that_does_not_wrap_the_operands() -> None:
    trunk = convert_layers(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2)))
    head, x = nn.Linear(4 * 9, 2), torch.randn(16, 3, 8, 8)
    trunk.requires_grad_(False).eval()

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        found: Tensor = functional_call(head, parameters, (trunk(x).flatten(1),))
        return found.square().sum()

    found = torch.func.grad(loss)(dict(head.named_parameters()))
    (expected,) = torch.autograd.grad(loss(dict(head.named_parameters())), [head.weight])
    torch.testing.assert_close(found["weight"], expected)
    scales = torch.tensor([1.0, 2.0])
    mapped = torch.func.vmap(lambda scale: (trunk(x) * scale).sum())(scales)
    torch.testing.assert_close(mapped, trunk(x).sum() * scales, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", ["identity", "relu"])
def test_a_converted_network_can_be_scripted_and_traced_symbolically(
    activation: Literal["identity", "relu"],
) -> None:
    trunk = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    network = nn.Sequential(convert_layers(trunk), MaxPool2d(2, activation=activation))
    x = torch.randn(16, 1, 8, 8)
    network.eval()
    expected = network(x)
    torch.testing.assert_close(torch.jit.script(network)(x), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.fx.symbolic_trace(trunk)(x), trunk(x), rtol=1e-4, atol=1e-4)


def _converted() -> nn.Sequential:
    layers = [nn.Conv2d(1, 20, 3), nn.BatchNorm2d(20), nn.MaxPool2d(2), nn.Dropout(0.5), nn.Flatten()]
    network = nn.Sequential(*layers, nn.Linear(20 * 169, 100))
    convert_layers(network)
    return network


def test_torch_fx_records_each_converted_layer_as_one_call_that_follows_its_mode() -> None:
    traced = torch.fx.symbolic_trace(_converted())
    assert [node.op for node in traced.graph.nodes] == ["placeholder", *["call_module"] * 6, "output"]
    x = torch.rand(16, 1, 28, 28)
    assert not torch.equal(traced(x), traced(x))  # dropout
    traced.eval()
    assert torch.equal(traced(x), traced(x))


@pytest.mark.parametrize("images", [2, 32])
def test_outputs_of_converted_layers_are_no_views_so_that_changes_in_place_cost_no_copy(images: int) -> None:
    x = torch.rand(images, 1, 28, 28)
    for layer in _converted()[:4]:  # flattened maps are a view, as in torch
        x = layer(x)
        assert not x._is_view(), type(layer).__name__
    with torch.no_grad():
        y = _converted()[:2](torch.rand(images, 1, 28, 28))
    y.add_(torch.ones((), requires_grad=True)).sum().backward()


def test_batch_normalisation_of_maps_changed_in_place_has_the_gradients_of_torch() -> None:
    x = torch.rand(32, 3, 9, 9, dtype=torch.float64)
    found = []
    for convert in (False, True):
        torch.manual_seed(1)
        network = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(inplace=True)).double()
        if convert:
            convert_layers(network)
        y = x.clone().requires_grad_()
        (network(y).square().sum() * 3).backward()
        found.append([y.grad, *(one.grad for one in network.parameters())])
    torch.testing.assert_close(*found)


def test_only_modules_are_converted() -> None:
    with pytest.raises(UserError, match=r"takes a torch\.nn\.Module, got list"):
        convert_layers([nn.Conv2d(1, 4, 3)])  # type: ignore[arg-type]  # what is tested
