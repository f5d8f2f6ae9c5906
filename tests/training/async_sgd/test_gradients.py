"""Factors of a batch, compared with autograd's gradients, and the choice by sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from cotswold.errors import UserError
from cotswold.nn import LocallyConnected2d
from cotswold.recipe import load
from cotswold.shards.runtime.layout import split_into_shards
from cotswold.shards.runtime.local_product import LocalProduct
from cotswold.training.async_sgd.capture import capture_factors, layers_of
from cotswold.training.async_sgd.factors import Factors, LinearFactors, LocalFactors
from cotswold.training.async_sgd.gradients import ModuleUpdates, PushFormat
from cotswold.training.flat_parameters import FlatParameters
from cotswold.training.models import build_layers


def assert_same(found: Tensor, wanted: Tensor) -> None:
    """Check equality up to rounding in float64."""
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def square(module: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = module(x)
    return y.square().sum()


class Pushing:
    """A module, and the pushes of its batches."""

    def __init__(
        self,
        module: nn.Module,
        ways: Mapping[str, PushFormat] | None = None,
        servers: Sequence[str] = ("server",),
        shard_bytes: int = 1 << 20,
        push_samples: int = 1,
    ) -> None:
        self.updates = ModuleUpdates(FlatParameters(module), ways)
        self.flat = self.updates.flat
        item_bytes = self.flat.vector.element_size()
        self.shards = split_into_shards(self.updates.layout, item_bytes, shard_bytes, servers)
        self.updates.lay(self.shards, push_samples)

    def of(self, loss: Callable[[], Tensor], samples: int = 1) -> tuple[Tensor, Mapping[str, Factors]]:
        """Return the gradient, with zeros for tensors pushed as factors, and the factors by tensor."""
        gradient = torch.zeros_like(self.flat.vector)
        self.updates.compute_loss(loss, samples, gradient)
        return gradient, self.updates.take()

    def autograds(self, loss: Callable[[], Tensor]) -> Tensor:
        gradient = torch.zeros_like(self.flat.vector)
        self.flat.set_grad_views(gradient)
        loss().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.flat.set_grad_views(None)
        return gradient

    def checked(self, loss: Callable[[], Tensor]) -> tuple[Tensor, Mapping[str, Factors]]:
        """Return the push of a batch, after checking it against autograd's gradient."""
        gradient, factors = self.of(loss)
        whole = gradient.clone()
        for name, each in factors.items():
            part = self.flat.by_name(whole)[name]
            assert not part.any()
            part.copy_(each.gradient())
        assert_same(whole, self.autograds(loss))
        return gradient, factors

    @property
    def ways(self) -> dict[str, PushFormat]:
        return {name: cost.push_format for name, cost in self.updates.costs.items()}


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize("bias", [True, False])
def test_factors_of_a_linear_layer_give_autograds_gradient(shape: tuple[int, ...], bias: bool) -> None:
    pushing = Pushing(nn.Sequential(nn.Linear(6, 4, bias=bias).double()), {"0": "factors"})
    x = torch.randn(*shape, 6, dtype=torch.float64)
    for _ in range(2):  # the first batch computes the gradient as well
        gradient, factors = pushing.checked(partial(square, pushing.flat.module, x))
        assert factors["0.weight"].examples == x[..., 0].numel()
        assert gradient.any() == bias


@pytest.mark.parametrize("batch", [(5,), ()])
@pytest.mark.parametrize(
    ("stride", "padding", "block"), [(1, 0, 1), (2, 1, (2, 3)), (1, "same", 1), ((2, 1), 2, (1, 2))]
)
def test_factors_of_a_local_layer_give_autograds_gradient_whole_and_by_rows_of_blocks(
    stride: int, padding: int, block: int, batch: tuple[int, ...]
) -> None:
    layer = LocallyConnected2d(2, 3, (8, 7), 3, stride, padding, block=block).double()
    pushing = Pushing(nn.Sequential(layer), {"0": "factors"})
    x = torch.randn(*batch, 2, 8, 7, dtype=torch.float64)
    loss = partial(square, pushing.flat.module, x)
    pushing.checked(loss)
    _, factors = pushing.checked(loss)
    own = factors["0.weight"]
    down = layer.grid[0]
    product = LocalProduct.of((0, *pushing.updates.layout[0].product))
    columns = layer.weight.numel() // down
    for seen_by in ((0, down), (1, down)):
        for first, stop in ((1, 2), (1, down), (down - 1, down)):
            errors, seen = own.errors_of(first, stop), own.activations_of(*seen_by)
            assert errors.numel() == own.examples * product.errors(first, stop)
            assert seen.numel() == own.examples * product.activations(*seen_by)
            assert errors.numel() + own.activations_of(first, stop).numel() == own.numbers(first, stop)
            flat, below = (each.view(-1).numpy() for each in (errors, seen))
            found = torch.from_numpy(product.gradient(flat, below, (first, stop), seen_by))
            assert_same(found, own.gradient().reshape(-1)[first * columns : stop * columns])


def test_rows_of_a_linear_layer_need_all_its_activations_and_their_own_errors() -> None:
    factors = LinearFactors.of(torch.randn(5, 4), torch.randn(5, 6))
    assert factors.numbers(1, 3) == 5 * 6 + 5 * 2
    product = factors.errors_of(1, 3).t() @ factors.activations_of(1, 3)
    torch.testing.assert_close(product, factors.gradient()[1:3])


def test_factors_of_several_batches_are_those_of_the_sum_of_their_gradients() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(LocallyConnected2d(1, 2, 6, 3), nn.Flatten(), nn.Linear(32, 3)).double()
    pushing = Pushing(module, {"0": "factors", "2": "factors"})
    losses = [partial(square, module, torch.randn(n, 1, 6, 6, dtype=torch.float64)) for n in (3, 1, 2)]
    gradient = torch.zeros_like(pushing.flat.vector)
    for loss in losses:
        pushing.updates.compute_loss(loss, 1, gradient)
    factors = pushing.updates.take()
    wanted = pushing.flat.by_name(sum((pushing.autograds(loss) for loss in losses), torch.zeros(())))
    for name, each in factors.items():
        assert each.examples == 6
        assert_same(each.gradient(), wanted[name])
    assert_same(pushing.flat.by_name(gradient)["2.bias"], wanted["2.bias"])
    assert not pushing.updates.take()


def mixed() -> nn.Sequential:
    """Return layers of every kind; the first with factors reads data, and is changed in place."""
    return nn.Sequential(
        LocallyConnected2d(1, 2, (6, 6), 3),
        nn.ReLU(inplace=True),
        nn.Conv2d(2, 3, 3),
        nn.Flatten(),
        nn.Linear(12, 8),
        nn.ReLU(inplace=True),
        nn.Linear(8, 3),
    ).double()


def test_what_is_not_pushed_as_factors_has_the_bits_of_an_ordinary_backward_pass() -> None:
    torch.manual_seed(0)
    pushing = Pushing(mixed(), {"0": "factors", "4": "factors", "6": "gradient"})
    module = pushing.flat.module
    assert list(layers_of(module)) == ["0", "4", "6"]
    loss = partial(square, module, torch.randn(5, 1, 6, 6, dtype=torch.float64))
    for _ in range(2):
        gradient, factors = pushing.checked(loss)
        assert set(factors) == {"0.weight", "4.weight"}
        found, wanted = (pushing.flat.by_name(each) for each in (gradient, pushing.autograds(loss)))
        for name in ("0.bias", "2.weight", "2.bias", "4.bias", "6.weight", "6.bias"):
            assert torch.equal(found[name], wanted[name])
    assert all(each.requires_grad for each in module.parameters())
    assert not any(each._forward_hooks for each in module.modules())


def test_a_product_that_another_process_computes_is_not_computed_here() -> None:
    pushing = Pushing(nn.Sequential(nn.Linear(30, 20)), {"0": "factors"})
    loss = partial(square, pushing.flat.module, torch.randn(10, 30))
    flops = []
    for _ in range(2):
        with FlopCounterMode(display=False) as counter:
            pushing.of(loss)
        flops.append(counter.get_total_flops())
    assert flops[1] == 2 * 10 * 30 * 20  # forward alone


class Twice(nn.Module):
    """A layer that is applied twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.times = 2

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = self.layer(x).tanh()
        return x


class Recomputed(Twice):
    """A layer whose forward pass is recomputed in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant, self.times = reentrant, 1

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = checkpoint(super().forward, x.requires_grad_(), use_reentrant=self.reentrant)
        return found


class Elsewhere(Twice):
    """A layer whose weights are used by a function as well."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.layer(x), self.layer.weight)


class Penalised(Twice):
    """A layer whose weights are part of the loss."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y.mean() + self.layer.weight.square().sum()


class Tied(Twice):
    """Two layers that share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(6, 6)
        self.other.weight = self.layer.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.other(self.layer(x))
        return y


UNFIT = [Twice, partial(Recomputed, True), partial(Recomputed, False), Elsewhere, Penalised, Tied]


@pytest.mark.parametrize("module", UNFIT)
def test_a_layer_whose_factors_are_not_its_gradient_is_pushed_as_gradients(
    module: Callable[[], nn.Module],
) -> None:
    pushing = Pushing(module().double())
    for _ in range(3):
        _, factors = pushing.checked(partial(square, pushing.flat.module, torch.randn(1, 6).double()))
        assert not factors


@pytest.mark.parametrize("module", UNFIT[:-1])
def test_a_wish_for_factors_that_cannot_be_fulfilled_is_refused(module: Callable[[], nn.Module]) -> None:
    pushing = Pushing(module(), {"layer": "factors"})
    with pytest.raises(UserError, match="layer cannot be pushed as factors"):
        pushing.of(partial(square, pushing.flat.module, torch.randn(1, 6)))


def test_names_that_are_no_such_layers_are_refused_with_those_that_are() -> None:
    with pytest.raises(UserError, match="'other' cannot be pushed as factors; layers with factors: none"):
        Pushing(Tied(), {"other": "factors"})


def test_a_layer_that_is_applied_a_second_time_later_is_refused() -> None:
    module = Twice()
    module.times = 1
    pushing = Pushing(module, {"layer": "factors"})
    loss = partial(square, module, torch.randn(1, 6))
    pushing.of(loss)
    module.times = 2
    with pytest.raises(UserError, match="layer was applied 2 times in one batch"):
        pushing.of(loss)
    module.times = 0
    assert not pushing.of(lambda: module(torch.randn(1, 6, requires_grad=True)).sum())[1]


def test_a_layer_that_a_batch_does_not_reach_is_judged_when_one_does() -> None:
    module = Twice()
    module.times = 0
    pushing = Pushing(module)
    pushing.of(lambda: module(torch.randn(1, 6, requires_grad=True)).sum())
    assert not pushing.updates.costs
    module.times = 1
    pushing.of(partial(square, module, torch.randn(1, 6)))
    assert pushing.ways == {"layer": "gradient"}, "it is given samples"


@settings(max_examples=60, deadline=None)
@given(
    inputs=st.integers(1, 40),
    outputs=st.integers(1, 40),
    samples=st.integers(1, 12),
    batches=st.integers(1, 3),
    servers=st.integers(1, 4),
    shard_bytes=st.integers(16, 2000),
)
def test_the_way_of_fewer_numbers_is_chosen(
    inputs: int, outputs: int, samples: int, batches: int, servers: int, shard_bytes: int
) -> None:
    names = [f"server-{number}" for number in range(servers)]
    module = nn.Sequential(nn.Linear(2, inputs), nn.Linear(inputs, outputs))
    pushing = Pushing(module, None, names, shard_bytes, batches * samples)
    pushing.of(partial(square, module, torch.randn(samples, 2)), samples)
    holding = len({shard.server for shard in pushing.shards if shard.tensor == "1.weight"})
    factors = batches * samples * (inputs * holding + outputs)
    cost = pushing.updates.costs["1"]
    assert (cost.gradient, cost.factors) == (inputs * outputs, factors)
    assert cost.push_format == ("factors" if factors < inputs * outputs else "gradient")


def test_what_is_wished_overrides_the_numbers() -> None:
    pushing = Pushing(mixed(), {"4": "gradient", "6": "factors"})
    x = torch.randn(1, 1, 6, 6, dtype=torch.float64)
    pushing.of(partial(square, pushing.flat.module, x))
    assert pushing.ways == {"0": "gradient", "6": "factors"}


class Axes(nn.Module):
    """A change of the order of axes."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(-1, -2).contiguous()


class Asking(nn.Module):
    """Samples that require a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone().requires_grad_().mul(1)


class Beside(nn.Module):
    """Samples given to two layers, which are made in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(30, 20)
        self.one, self.other = nn.Linear(36, 30), nn.Linear(36, 30)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        found: Tensor = self.last(self.one(flat) + self.other(flat))
        return found


def frozen() -> nn.Module:
    return nn.Linear(36, 36).requires_grad_(False)


@pytest.mark.parametrize(
    ("module", "factored"),
    [
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 30), nn.Tanh(), nn.Linear(30, 20)), {"3"}),
        (lambda: nn.Sequential(Axes(), nn.Flatten(), nn.Linear(36, 30), nn.Linear(30, 20)), {"3"}),
        (lambda: nn.Sequential(nn.AvgPool2d(1), nn.Flatten(), nn.Linear(36, 20)), set()),
        (lambda: nn.Sequential(Asking(), nn.Flatten(), nn.Linear(36, 20)), set()),
        (lambda: nn.Sequential(nn.GroupNorm(1, 1), nn.Flatten(), nn.Linear(36, 20)), set()),
        (lambda: nn.Sequential(nn.Flatten(), frozen(), nn.Linear(36, 20)), set()),
        (lambda: nn.Sequential(LocallyConnected2d(1, 2, (6, 6), 3), nn.Flatten(), nn.Linear(32, 9)), {"2"}),
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 20)), {"2"}),
        (Beside, {"last"}),
    ],
)
def test_samples_are_in_no_factors_but_by_name(module: Callable[[], nn.Module], factored: set[str]) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 1, 6, 6, dtype=torch.float64)
    pushing = Pushing(module().double())
    for _ in range(2):
        _, factors = pushing.checked(partial(square, pushing.flat.module, x.clone()))
        assert factors.keys() == {f"{name}.weight" for name in factored}
        assert not any(_holds(each, x) for each in factors.values())
    (first, *_) = layers_of(pushing.flat.module)
    named = Pushing(pushing.flat.module, {first: "factors"})
    assert f"{first}.weight" in named.of(partial(square, pushing.flat.module, x))[1]


def _holds(factors: Factors, x: Tensor) -> bool:
    """True if a number of the samples is among the factors of all rows."""
    assert isinstance(factors, LinearFactors | LocalFactors)
    return bool(torch.isin(x, factors.activations).any())


def test_the_papers_network_pushes_its_large_layers_as_factors() -> None:
    network = build_layers(load("adam-mnist"), 10, None)
    pushing = Pushing(network, push_samples=100)
    pushing.of(lambda: network(torch.randn(100, 1, 28, 28)).logsumexp(1).sum(), 100)
    found = [(cost.gradient, cost.factors, cost.push_format) for cost in pushing.updates.costs.values()]
    assert found == [
        (980 * 400, 100 * (980 + 400), "factors"),
        (400 * 400, 100 * (400 + 400), "factors"),
        (400 * 10, 100 * (400 + 10), "gradient"),
    ]


def test_inputs_that_are_changed_in_place_later_do_not_change_factors() -> None:
    layer = nn.Linear(3, 2)
    x = torch.ones(1, 3)
    with capture_factors({"layer": layer}, skip_weights=True) as found:
        y = layer(x)
        x.zero_()
        y.sum().backward()
    factors = found["layer"].factors
    assert isinstance(factors, LinearFactors)
    assert torch.equal(factors.activations, torch.ones(1, 3))


def test_a_local_layer_is_captured_by_the_name_of_its_argument() -> None:
    layer = LocallyConnected2d(1, 1, (4, 4), 3)
    with capture_factors({"layer": layer}, skip_weights=True) as found:
        layer(x=torch.ones(2, 1, 4, 4)).sum().backward()
    factors = found["layer"].factors
    assert isinstance(factors, LocalFactors) and factors.examples == 2
