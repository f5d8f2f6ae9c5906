"""Layers and stacks in programs that know nothing of Cotswold."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cotswold.errors import CotswoldError, ExportError, ForwardModeError
from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window
from cotswold.nn import (
    L2Pool2d,
    LocalContrastNorm2d,
    LocallyConnected1d,
    LocallyConnected2d,
    LocallyConnected3d,
    SparseAutoencoderStack,
)

GEOMETRY = StackGeometry(
    BlockLocal(MapShape(3, 8, 9), Window(4, 2), Window(3, 2), rows=2, columns=2, depth=2),
    Smoothing(3, keep=True),
    Smoothing(3, keep=True),
)
BUILDERS: dict[str, Any] = {
    "1d": lambda **at: (LocallyConnected1d(3, 4, 9, 3, padding=1, **at), (3, 9)),
    "2d": lambda **at: (LocallyConnected2d(3, 4, (7, 6), 3, padding=1, **at), (3, 7, 6)),
    "blocks": lambda **at: (LocallyConnected2d(3, 4, (7, 6), 3, stride=2, block=(2, 3), **at), (3, 7, 6)),
    "3d": lambda **at: (LocallyConnected3d(3, 4, (3, 4, 5), 2, padding=1, **at), (3, 3, 4, 5)),
    "stack": lambda **at: (SparseAutoencoderStack(GEOMETRY, **at), (3, 8, 9)),
    "pool": lambda: (L2Pool2d(3), (3, 7, 6)),
    "norm": lambda: (LocalContrastNorm2d(3, padding="same"), (3, 7, 6)),
}
LEARNING = ["1d", "2d", "blocks", "3d", "stack"]
every = pytest.mark.parametrize("name", BUILDERS)
every_in_soak = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ("2d", "stack") else pytest.mark.soak) for name in BUILDERS],
)
"""Cases for slow tests in torch: one layer and the stack, which has all kinds of operations."""
learning = pytest.mark.parametrize("name", LEARNING)


def loss_of(layer: nn.Module, x: Tensor) -> Tensor:
    """Return the training loss of a layer; a normalised output alone does not depend on α."""
    return layer.objective(x) if isinstance(layer, SparseAutoencoderStack) else layer(x).square().sum()


def build(name: str, images: int = 3, **at: Any) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    layer, shape = BUILDERS[name](**at)
    return layer, torch.randn(images, *shape, dtype=at.get("dtype"))


@learning
def test_a_state_dict_makes_the_round_trip_strictly(name: str) -> None:
    layer, x = build(name)
    other, _ = BUILDERS[name]()
    with torch.no_grad():
        for values in other.parameters():
            values.add_(1)
    other.load_state_dict(layer.state_dict(), strict=True)
    torch.testing.assert_close(other(x), layer(x))


def test_a_state_dict_of_another_geometry_is_refused() -> None:
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        LocallyConnected2d(3, 4, 8, 3).load_state_dict(LocallyConnected2d(3, 4, 9, 3).state_dict())


@every
def test_a_deep_copy_answers_alike_and_shares_nothing(name: str) -> None:
    layer, x = build(name)
    twin = copy.deepcopy(layer)
    expected = layer(x)
    with torch.no_grad():
        for values in layer.parameters():
            values.zero_()
    torch.testing.assert_close(twin(x), expected)


@every
def test_a_layer_can_be_saved_and_loaded_whole(name: str) -> None:
    layer, x = build(name)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file, weights_only=False)(x), layer(x))


@every
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-5), (torch.bfloat16, 0.1), (torch.float16, 0.02)]
)
def test_a_layer_works_in_other_dtypes(name: str, dtype: torch.dtype, tolerance: float) -> None:
    layer, x = build(name)
    expected = layer(x)
    answer = layer.to(dtype)(x.to(dtype))
    assert answer.dtype == dtype
    torch.testing.assert_close(answer.float(), expected, atol=tolerance, rtol=tolerance)


@learning
def test_autocast_computes_in_bfloat16_as_it_does_for_a_convolution(name: str) -> None:
    layer, x = build(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
        assert y.dtype == nn.Conv1d(3, 4, 3)(torch.randn(1, 3, 9)).dtype
        loss = y.float().square().sum()
    loss.backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None and parameter.grad.dtype == torch.float32
    torch.testing.assert_close(y.float(), layer(x), atol=0.1, rtol=0.1)


@every_in_soak
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by dynamo itself
def test_compiled_without_a_graph_break_a_layer_answers_and_learns_alike(name: str) -> None:
    layer, x = build(name)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))
    batches = (x, torch.cat((x, x))) if name in ("2d", "pool") else (x,)  # another size, where it is cheap
    for batch in batches:
        leaves = [batch.requires_grad_(), *layer.parameters()]
        expected = torch.autograd.grad(layer(batch).square().sum(), leaves)
        torch.testing.assert_close(torch.autograd.grad(compiled(batch).square().sum(), leaves), expected)


@learning
def test_functional_gradients_for_each_image_are_those_of_a_loop(name: str) -> None:
    layer, x = build(name, dtype=torch.float64)
    parameters = {key: value.detach() for key, value in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor], image: Tensor) -> Tensor:
        answer: Tensor = functional_call(layer, parameters, (image,))
        return answer.square().sum()

    together = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    for index, image in enumerate(x):
        alone = grad(loss)(parameters, image)
        for key in parameters:
            torch.testing.assert_close(together[key][index], alone[key])


@learning
def test_an_ensemble_of_layers_is_mapped_over_its_parameters(name: str) -> None:
    layers = [build(name)[0] for _ in range(3)]
    with torch.no_grad():
        for scale, layer in enumerate(layers):
            for parameter in layer.parameters():
                parameter.mul_(1 + scale)
    _, x = build(name)
    parameters, buffers = stack_module_state(layers)

    def answer(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        y: Tensor = functional_call(layers[0], (parameters, buffers), (x,))
        return y

    together = vmap(answer, in_dims=(0, 0, None))(parameters, buffers, x)
    torch.testing.assert_close(together, torch.stack([layer(x) for layer in layers]))


@every
def test_a_jacobian_in_reverse_mode_predicts_small_changes(name: str) -> None:
    layer, x = build(name, images=1)
    layer, x = layer.double(), x.double()
    jacobian = jacrev(layer)(x)
    step = 1e-6 * torch.randn_like(x)
    predicted = (jacobian * step).sum(tuple(range(-x.dim(), 0)))
    torch.testing.assert_close(layer(x + step) - layer(x - step), 2 * predicted, atol=1e-9, rtol=1e-3)


@every
def test_forward_mode_is_refused_in_words_of_our_own(name: str) -> None:
    layer, x = build(name)
    with pytest.raises(ForwardModeError, match="forward"):
        jvp(layer, (x,), (torch.ones_like(x),))


@every
def test_a_hessian_by_forward_over_reverse_is_refused_too(name: str) -> None:
    layer, x = build(name)
    with pytest.raises(ForwardModeError, match="jacrev"):
        hessian(lambda maps: loss_of(layer, maps))(x)


def test_a_hessian_by_reverse_over_reverse_is_right() -> None:
    layer, x = LocallyConnected2d(1, 1, 3, 2).double(), torch.randn(1, 1, 3, 3, dtype=torch.float64)

    def loss(maps: Tensor) -> Tensor:
        answer: Tensor = layer(maps)
        return answer.pow(3).sum()

    expected = torch.autograd.functional.hessian(loss, x)  # type: ignore[no-untyped-call]  # torch's
    torch.testing.assert_close(jacrev(jacrev(loss))(x), expected)


@every
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_the_older_onnx_exporter_is_refused(name: str) -> None:
    layer, x = build(name)
    with pytest.raises(ExportError, match=r"cannot be exported to ONNX.*use torch\.export"):
        torch.onnx.export(layer, (x,), io.BytesIO(), dynamo=False)  # type: ignore[arg-type]  # a file object


@every
@pytest.mark.parametrize(("strict", "error"), [(False, ExportError), (True, RuntimeError)])
def test_the_newer_onnx_exporter_is_refused_in_both_of_its_ways(
    name: str, strict: bool, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the optional onnxscript, use the flag that it sets and its first call."""
    layer, x = build(name)
    monkeypatch.setattr("torch.onnx._internal.exporter._flags._is_onnx_exporting", True)
    with pytest.raises(error, match=r"cannot be exported to ONNX"):
        torch.export.export(layer, (x,), strict=strict)


@every_in_soak
def test_torch_onnx_export_names_the_remedy(name: str) -> None:
    pytest.importorskip("onnxscript")
    layer, x = build(name)
    with pytest.raises(torch.onnx.OnnxExporterError, match=r"use torch\.export") as refusal:
        torch.onnx.export(layer.eval(), (x,), dynamo=True, verbose=False)
    assert isinstance(refusal.value.__cause__, ExportError)


@every
def test_torch_export_keeps_a_layer_whole(name: str) -> None:
    layer, x = build(name)
    exported = torch.export.export(layer, (x,))
    torch.testing.assert_close(exported.module()(x), layer(x))


@every
def test_gradient_checkpoints_give_the_same_gradients(name: str) -> None:
    layer, x = build(name)
    leaves = [x.requires_grad_(), *layer.parameters()]
    expected = torch.autograd.grad(layer(x).square().sum(), leaves)
    again = checkpoint(layer, x, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(again.square().sum(), leaves), expected)


@learning
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_optimisers_step_and_gradients_are_clipped(name: str, kind: type[torch.optim.Optimizer]) -> None:
    layer, x = build(name)
    before = copy.deepcopy(layer.state_dict())
    optimiser = kind(layer.parameters(), lr=0.01)  # type: ignore[call-arg]  # each of them takes lr
    loss_of(layer, x).backward()  # type: ignore[no-untyped-call]  # torch has it untyped
    norm = nn.utils.clip_grad_norm_(layer.parameters(), 0.1, error_if_nonfinite=True)
    clipped = torch.stack([p.grad.norm() for p in layer.parameters() if p.grad is not None]).norm()
    assert norm > 0.1
    torch.testing.assert_close(clipped, torch.tensor(0.1))
    optimiser.step()
    for key, parameter in layer.named_parameters():
        assert not torch.equal(parameter, before[key])


def test_a_foreign_network_with_a_local_layer_learns() -> None:
    torch.manual_seed(0)
    images, labels = torch.randn(64, 1, 10, 10), torch.arange(64) % 4
    for label in range(4):
        images[labels == label, 0, 2 * label : 2 * label + 3, 3:6] += 1.5
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        LocallyConnected2d(4, 4, input_size=8, kernel_size=3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 4),
    )
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(40):
        optimiser.zero_grad()
        loss = F.cross_entropy(network(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]  # torch has it untyped
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]


def test_every_refusal_is_one_of_the_errors_that_the_command_knows() -> None:
    assert issubclass(ExportError, CotswoldError) and issubclass(ForwardModeError, CotswoldError)
    assert ExportError.exit_code == ForwardModeError.exit_code == 2


@pytest.mark.parametrize("block", [(1, 1), (2, 2)])
@pytest.mark.parametrize("bias", [False, True])
def test_what_follows_a_layer_may_change_its_output_in_place(block: tuple[int, int], bias: bool) -> None:
    layer = LocallyConnected2d(2, 3, 8, 3, block=block, bias=bias, dtype=torch.float64)
    images = torch.rand(5, 2, 8, 8, dtype=torch.float64)
    for x in (images, images[0]):
        layer.zero_grad()
        layer(x).relu().sum().backward()
        expected = [one.grad.clone() for one in layer.parameters() if one.grad is not None]
        layer.zero_grad()
        torch.nn.ReLU(inplace=True)(layer(x)).sum().backward()
        y = layer(x)
        y *= 0
        y.sum().backward()
        for one, slope in zip(layer.parameters(), expected, strict=True):
            assert one.grad is not None and torch.equal(one.grad, slope)


@every
def test_an_output_is_no_view_so_that_hooks_on_it_survive_a_change_in_place(name: str) -> None:
    layer, x = build(name)
    for given in (x.requires_grad_(), x[0]):
        assert not layer(given)._is_view()


@every
def test_an_output_that_is_changed_in_place_gives_the_gradients_of_one_that_is_not(name: str) -> None:
    layer, x = build(name)
    layers = [layer, layer[0]] if isinstance(layer, nn.Sequential) else [layer]
    for one in layers:
        inputs = (x.requires_grad_(), *one.parameters())
        expected = torch.autograd.grad(one(x).mul(3).relu().sum(), inputs, allow_unused=True)
        y = one(x)
        y *= 3
        found = torch.autograd.grad(y.relu_().sum(), inputs, allow_unused=True)
        torch.testing.assert_close(found, expected)


def test_a_stack_without_normalisation_may_be_changed_in_place_too() -> None:
    stack = SparseAutoencoderStack(StackGeometry(GEOMETRY.filters, Smoothing(3), Smoothing(1)))
    x = torch.randn(2, 3, 8, 9, requires_grad=True)
    (expected,) = torch.autograd.grad(stack(x).mul(2).sum(), x)
    y = stack(x)
    y *= 2
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], expected)


@every
@pytest.mark.parametrize("order", [torch.channels_last, torch.channels_last_3d])
def test_a_model_in_another_memory_format_keeps_the_order_of_filters(
    name: str, order: torch.memory_format
) -> None:
    layer, x = build(name)
    expected = layer(x)
    if order is torch.channels_last:  # torch converts no module with both four and five dimensions otherwise
        nn.Sequential(nn.Conv2d(2, 3, 3), layer).to(memory_format=order)  # type: ignore[call-overload]  # torch's
    else:
        layer.to(memory_format=order)  # type: ignore[call-overload]  # stubs know no order alone
    assert all(values.is_contiguous() for values in layer.parameters())
    assert torch.equal(layer(x), expected)
