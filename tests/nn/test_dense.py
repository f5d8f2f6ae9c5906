from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cotswold.errors import GeometryError, UserError
from cotswold.nn import DenseNetwork
from cotswold.ops.dense import DenseLoss, DenseOutput

SIZES = (11, 7, 5, 19)
COMBINED: list[tuple[DenseOutput, DenseLoss]] = [
    *(itertools.product(("tanh", "sigmoid", "softmax", "identity"), ("squared_error",))),  # type: ignore[list-item]  # itertools forgets literals
    ("softmax", "cross_entropy"),
    ("sigmoid", "cross_entropy"),
]


def operands(network: DenseNetwork, samples: int, classes: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return parameters, inputs and targets in float64."""
    generator = torch.Generator().manual_seed(samples)
    draw = {"generator": generator, "dtype": torch.float64}
    parameters = torch.randn(network.size, **draw) / 3  # type: ignore[call-overload]  # of a dictionary
    inputs = torch.randn(network.sizes[0], samples, **draw)  # type: ignore[call-overload]  # options by name
    if classes:
        return parameters, inputs, torch.randint(network.sizes[-1], (samples,), generator=generator)
    return parameters, inputs, torch.rand(network.sizes[-1], samples, **draw)  # type: ignore[call-overload]  # options by name


def plain(
    network: DenseNetwork, output: str, loss: str, parameters: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss, gradient and sums by autograd on textbook formulas."""
    flat = parameters.clone().requires_grad_()
    named, state = network.views(flat), inputs.t()
    for number in range(len(network.sizes) - 1):
        state = state @ named[f"{number}.weight"].t() + named[f"{number}.bias"]
        if number < len(network.sizes) - 2:
            state = torch.tanh(state)
    sums = state
    state = {
        "tanh": sums.tanh(),
        "sigmoid": sums.sigmoid(),
        "softmax": sums.softmax(1),
        "identity": sums,
    }[output]
    if targets.dtype.is_floating_point:
        wanted = targets.t()
    else:
        low, high = (-1.0, 1.0) if output == "tanh" else (0.0, 1.0)
        wanted = low + (high - low) * functional.one_hot(targets, network.sizes[-1]).to(sums.dtype)
    if loss == "squared_error":
        value = (state - wanted).square().sum()
    elif output == "softmax":
        value = -(wanted * state.log()).sum()
    else:
        value = functional.binary_cross_entropy(state, wanted, reduction="sum")
    (gradient,) = torch.autograd.grad(value, flat)
    return value.detach(), gradient, sums.detach()


@pytest.mark.parametrize(("output", "loss"), COMBINED)
@pytest.mark.parametrize("classes", [True, False])
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_value_and_gradient_are_those_of_autograd(
    output: DenseOutput, loss: DenseLoss, classes: bool, deterministic: bool, dtype: torch.dtype
) -> None:
    network = DenseNetwork(SIZES, "tanh", output, loss, deterministic=deterministic)
    for samples in (1, 37):
        parameters, inputs, targets = operands(network, samples, classes)
        value, gradient, sums = plain(network, output, loss, parameters, inputs, targets)
        added = torch.ones(network.size, dtype=dtype)
        typed = targets.to(dtype) if targets.dtype.is_floating_point else targets
        found, right = network.add(parameters.to(dtype), inputs.to(dtype), typed, added)
        alone, _ = network.add(parameters.to(dtype), inputs.to(dtype), typed)
        tolerance = 1e-12 if dtype == torch.float64 else 2e-5
        assert found == pytest.approx(float(value), rel=tolerance)
        assert alone == pytest.approx(float(value), rel=tolerance)
        scale = float(gradient.abs().max())
        assert float((added.double() - 1 - gradient).abs().max()) <= tolerance * (scale + 1)
        assert right == (int((sums.argmax(1) == targets).sum()) if classes else 0)


def test_layout_says_where_parameters_lie() -> None:
    network = DenseNetwork((400, 480, 3203))
    flat = torch.arange(network.size, dtype=torch.float64)
    views = network.views(flat)
    assert [(slot.name, slot.shape, slot.offset) for slot in network.layout] == [
        ("0.weight", (480, 400), 0),
        ("0.bias", (480,), 192_000),
        ("1.weight", (3203, 480), 192_480),
        ("1.bias", (3203,), 192_480 + 480 * 3203),
    ]
    assert int(views["1.weight"][1, 2]) == 192_480 + 480 + 2
    views["0.bias"].fill_(-1)
    assert int(flat[192_000]) == -1
    # 2 (n_i + n_o) n_h and 4 n_i n_h + 6 n_h n_o, as the paper counts
    assert network.flops == (2 * 480 * (400 + 3203), 4 * 400 * 480 + 6 * 480 * 3203)


@pytest.mark.parametrize("deterministic", [True, False])
def test_no_patterns_add_nothing(deterministic: bool) -> None:
    network = DenseNetwork(SIZES, deterministic=deterministic)
    gradient = torch.ones(network.size)
    found = network.add(torch.zeros(network.size), torch.empty(11, 0), torch.empty(0).long(), gradient)
    assert found == (0.0, 0) and bool((gradient == 1).all())


@pytest.mark.parametrize("deterministic", [True, False])
def test_equal_outputs_are_not_right(deterministic: bool) -> None:
    network = DenseNetwork(SIZES, deterministic=deterministic)
    inputs, classes = torch.randn(11, 20), torch.arange(20) % 19
    assert network.add(torch.zeros(network.size), inputs, classes)[1] == 0


@pytest.mark.parametrize("deterministic", [True, False])
def test_nan_comes_out_where_it_goes_in(deterministic: bool) -> None:
    network = DenseNetwork(SIZES, deterministic=deterministic)
    parameters = torch.randn(network.size)
    parameters[3] = torch.nan
    gradient = torch.zeros(network.size)
    value, right = network.add(parameters, torch.randn(11, 20), torch.arange(20) % 19, gradient)
    assert value != value and right == 0 and bool(gradient.isnan().any())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float64])
@pytest.mark.parametrize("deterministic", [True, False])
def test_inputs_of_a_store_are_converted(dtype: torch.dtype, deterministic: bool) -> None:
    network = DenseNetwork(SIZES, deterministic=deterministic)
    parameters, rows = torch.randn(network.size), torch.randint(0, 256, (23, 11))
    classes = torch.arange(23) % 19
    expected = network.add(parameters, rows.t().float(), classes)
    assert network.add(parameters, rows.to(dtype).t(), classes) == expected
    assert network.add(parameters, rows.to(dtype).t().contiguous(), classes) == expected


def test_what_does_not_fit_is_named() -> None:
    network = DenseNetwork(SIZES)
    parameters, inputs, classes = torch.zeros(network.size), torch.zeros(11, 4), torch.zeros(4).long()
    with pytest.raises(GeometryError, match="transpose them"):
        network.add(parameters, inputs.t(), classes)
    with pytest.raises(GeometryError, match="class numbers must have shape"):
        network.add(parameters, inputs, classes[:3])
    with pytest.raises(GeometryError, match="target values"):
        network.add(parameters, inputs, torch.zeros(4, 19))
    with pytest.raises(UserError, match="class numbers must be 0 to 18 for a network of 19 outputs"):
        network.add(parameters, inputs, classes + 19)
    with pytest.raises(UserError, match="both be float32 or both float64"):
        network.add(parameters, inputs, classes, torch.zeros(network.size, dtype=torch.float64))
    with pytest.raises(GeometryError, match="must have shape"):
        network.add(parameters[1:], inputs, classes)
    with pytest.raises(UserError, match="contiguous"):
        network.add(torch.zeros(network.size, 2)[:, 0], inputs, classes)
    with pytest.raises(UserError, match="inputs must be"):
        network.add(parameters, inputs.long(), classes)
    with pytest.raises(GeometryError, match="at least 1"):
        DenseNetwork((4,))
    with pytest.raises(UserError, match="cross_entropy needs probabilities"):
        DenseNetwork(SIZES, output="tanh", loss="cross_entropy")
    with pytest.raises(UserError, match="activation"):
        DenseNetwork(SIZES, activation="softmax")  # type: ignore[arg-type]  # what is not known


def test_outputs_are_those_that_the_value_is_of() -> None:
    network = DenseNetwork(SIZES, output="softmax", loss="cross_entropy")
    parameters, inputs, classes = operands(network, 23, classes=True)
    outputs = network.outputs(parameters, inputs)
    assert outputs.shape == (19, 23)
    own = outputs.gather(0, classes[None])
    assert network.add(parameters, inputs, classes)[0] == pytest.approx(float(-own.log().sum()))
