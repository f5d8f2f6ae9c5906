"""Calls of a small layer: few steps of Python, maps arranged once, gradients in the order of their inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType

import pytest
import torch
from tests.support.kernels.operations import processors
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from cotswold.nn import LocallyConnected2d
from cotswold.ops import images_last, memory_format
from cotswold.ops.reverse_mode import is_eager

pytestmark = pytest.mark.skipif(not processors(), reason="kernels have no code for this processor")

SMALL = (3, 8, 16, 5)
ORDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "images first": lambda x: x.contiguous(),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "images last": images_last,
    "another": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
}


def python_calls(call: Callable[[], object]) -> int:
    """Count the Python functions that a call enters, after two calls that prepare it."""
    found = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal found
        found += event == "call"

    call(), call()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def test_a_small_layer_takes_few_python_calls() -> None:
    layer, x = LocallyConnected2d(*SMALL), torch.randn(16, 3, 16, 16)
    delta, leaf = torch.randn(16, 8, 12, 12), x.clone().requires_grad_()
    with torch.no_grad():
        assert python_calls(lambda: layer(x)) <= 165
    assert python_calls(lambda: layer(leaf)) <= 200
    assert python_calls(lambda: layer(leaf).backward(delta)) <= 460


@pytest.fixture
def arranged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Return the shape of each map that a kernel has copied into another order."""
    found: list[tuple[int, ...]] = []
    usual = memory_format._transpose

    def noted(first: Tensor, last: Tensor, to_last: bool) -> None:
        found.append(tuple(first.shape))
        usual(first, last, to_last)

    monkeypatch.setattr(memory_format, "_transpose", noted)
    return found


def test_a_step_arranges_the_input_once_and_the_gradient_once(arranged: list[tuple[int, ...]]) -> None:
    layer, x = LocallyConnected2d(*SMALL), torch.randn(8, 3, 16, 16)
    layer(x).backward(torch.randn(8, 8, 12, 12))
    assert arranged == [(8, 3, 16, 16), (8, 8, 12, 12)]
    layer(x.requires_grad_()).backward(torch.randn(8, 8, 12, 12))
    assert arranged[2:] == [(8, 3, 16, 16), (8, 8, 12, 12), (8, 3, 16, 16)]  # and the input's gradient


def test_a_kernel_gives_the_gradient_of_an_input_the_order_channels_last(
    arranged: list[tuple[int, ...]],
) -> None:
    layer = LocallyConnected2d(*SMALL)
    x = torch.randn(8, 3, 16, 16).to(memory_format=torch.channels_last).requires_grad_()
    above = torch.randn(8, 8, 12, 12)
    layer(x).backward(above)
    assert x.grad is not None and x.grad.is_contiguous(memory_format=torch.channels_last)
    assert len(arranged) == 3, "the input, the gradient and the input's gradient"
    plain = x.detach().contiguous().requires_grad_()
    layer(plain).backward(above)
    assert plain.grad is not None and torch.equal(x.grad, plain.grad)


@pytest.mark.parametrize("images", [8, 400])
def test_autograd_keeps_the_arranged_input_unless_it_is_larger_than_the_filters(images: int) -> None:
    layer, x = LocallyConnected2d(*SMALL), torch.randn(images, 3, 16, 16)
    kept: list[int] = []

    def keep(value: Tensor) -> Tensor:
        kept.append(value.data_ptr())
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        layer(x)
    assert len(kept) == 2
    assert (x.data_ptr() in kept) == (x.nbytes > layer.weight.nbytes)


@pytest.mark.parametrize("images", [1, 3, 8, 400])
@pytest.mark.parametrize("order", ORDERS)
def test_gradients_of_inputs_have_their_memory_order_and_the_same_bits(order: str, images: int) -> None:
    torch.manual_seed(0)
    layer = LocallyConnected2d(*SMALL)
    x, delta = torch.randn(images, 3, 16, 16), torch.randn(images, 8, 12, 12)
    plain, given = images_last(x).requires_grad_(), ORDERS[order](x).clone().requires_grad_()
    expected = torch.autograd.grad(layer(plain), (plain, *layer.parameters()), images_last(delta))
    got = torch.autograd.grad(layer(given), (given, *layer.parameters()), delta)
    assert all(map(torch.equal, got, expected))
    if images > 1 and order != "another":
        assert got[0].stride() == given.stride()


@pytest.mark.parametrize("order", ORDERS)
def test_second_derivatives_pass_through_the_change_of_order(order: str) -> None:
    torch.manual_seed(0)
    layer = LocallyConnected2d(2, 3, 6, 3).double()
    x = ORDERS[order](torch.randn(5, 2, 6, 6, dtype=torch.float64)).clone().requires_grad_()
    torch.autograd.gradgradcheck(lambda x: layer(x).square(), (x,), fast_mode=True)


OBSERVERS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "a counter of FLOPs": lambda: FlopCounterMode(display=False),
    "tensors without values": lambda: FakeTensorMode(allow_non_fake_inputs=True),
    "forward mode": forward_ad.dual_level,
}


@pytest.mark.parametrize("name", OBSERVERS)
def test_whatever_watches_operations_sees_the_custom_operation(name: str) -> None:
    x = torch.randn(2, 3)
    assert is_eager(x, (1, 2), "text", torch.nn.Parameter(x))
    with OBSERVERS[name]():
        assert not is_eager(x)
    assert is_eager(x)


def test_transforms_traces_and_other_kinds_of_tensors_see_the_custom_operation() -> None:
    class Other(Tensor):
        pass

    seen: list[bool] = []

    def note(x: Tensor) -> Tensor:
        seen.append(is_eager(x))
        return x * 2

    x = torch.randn(2, 3)
    torch.func.vmap(note)(x)
    torch.func.grad(lambda x: note(x).sum())(x)
    torch.jit.trace(note, (x,), check_trace=False)  # type: ignore[no-untyped-call]  # torch's
    note(x.as_subclass(Other))
    assert seen == [False] * len(seen) and len(seen) >= 4


def test_a_profile_names_the_layer() -> None:
    layer, x = LocallyConnected2d(*SMALL), torch.randn(8, 3, 16, 16)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        layer(x)
    assert "cotswold::local_layer" in {each.key for each in seen.key_averages()}
