"""Layers in traces of torch.fx and torch.jit, and under torch's counter of FLOPs."""

from __future__ import annotations

import io

import pytest
import torch
from tests.nn.test_foreign_code import BUILDERS, LEARNING, build
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from cotswold import ops
from cotswold.errors import ExportError
from cotswold.nn import LocallyConnected1d, LocallyConnected2d, LocallyConnected3d, SparseAutoencoderStack

every = pytest.mark.parametrize("name", BUILDERS)
old_trace = pytest.mark.filterwarnings("ignore:.*jit.*:DeprecationWarning", "ignore::torch.jit.TracerWarning")


@every
def test_torch_fx_records_a_layer_as_one_call(name: str) -> None:
    layer, x = build(name)
    network = nn.Sequential(layer, nn.ReLU())
    traced = torch.fx.symbolic_trace(network)
    assert [node.op for node in traced.graph.nodes] == ["placeholder", "call_module", "call_module", "output"]
    assert torch.equal(traced(x), network(x))


def test_torch_fx_is_refused_a_layer_by_itself_with_the_remedy() -> None:
    layer, _ = build("2d")
    with pytest.raises(ExportError, match=r"trace torch\.nn\.Sequential\(LocallyConnected2d"):
        torch.fx.symbolic_trace(layer)


@every
@old_trace
def test_a_trace_by_torch_jit_is_saved_loaded_and_differentiated(name: str) -> None:
    layer, x = build(name)
    layer.eval()
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(layer, x), file)  # type: ignore[no-untyped-call]  # untyped
    file.seek(0)
    loaded = torch.jit.load(file)  # type: ignore[no-untyped-call]  # untyped
    fewer, same = (x[:2].clone().requires_grad_() for _ in range(2))
    found, expected = loaded(fewer), layer(same)
    assert torch.equal(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(fewer.grad, same.grad)


@pytest.mark.parametrize("name", LEARNING)
def test_torchs_counter_finds_the_flops_of_the_products(name: str) -> None:
    layer, x = build(name)
    with FlopCounterMode(display=False) as counter:
        layer(x)
    if isinstance(layer, LocallyConnected2d):
        one_product = layer.geometry.product_flops
    elif isinstance(layer, SparseAutoencoderStack):
        one_product = layer.geometry.filters.product_flops
    else:
        assert isinstance(layer, LocallyConnected1d | LocallyConnected3d)
        one_product = sum(plane.layer.product_flops for plane in layer._planes)
    assert counter.get_total_flops() == len(x) * one_product
    with FlopCounterMode(display=False) as counter:
        layer(x.requires_grad_()).sum().backward()
    assert counter.get_total_flops() == 3 * len(x) * one_product


def test_a_counter_that_counts_already_learns_the_formulas_from_the_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.utils import flop_counter

    for one in list(flop_counter.flop_registry):
        if "cotswold" in str(one):
            monkeypatch.delitem(flop_counter.flop_registry, one)
    monkeypatch.setattr("cotswold.ops.flops._registered", set())
    layer, x = build("2d")
    with FlopCounterMode(display=False) as counter:
        layer(x)
    assert counter.get_total_flops() > 0


@pytest.mark.parametrize("images", [0, 1, 3])
def test_every_product_passes_torchs_check_of_custom_operations(images: int) -> None:
    layer, x = build("2d", images)
    assert isinstance(layer, LocallyConnected2d)
    code = list(ops.local.encode(layer.geometry))
    filters, biases = layer.weight.detach(), torch.zeros(layer.geometry.norms_shape)
    y = torch.randn(images, 4, 7, 6)
    calls = {
        "local_product": (x, filters, code),
        "local_adjoint": (y, filters, code),
        "local_outer": (y, x, code),
        "local_activated": (x, filters, biases, code, "tanh"),
    }
    for name, arguments in calls.items():
        asked = [one.clone().requires_grad_() if isinstance(one, torch.Tensor) else one for one in arguments]
        torch.library.opcheck(getattr(torch.ops.cotswold, name).default, tuple(asked))
