"""What a replica pushes: factors against autograd's gradients, the choice between them, deltas."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from cotswold.errors import UserError
from cotswold.nn import LocallyConnected2d
from cotswold.recipe import load
from cotswold.training.capture import capturing, layers_of
from cotswold.training.factors import LinearFactors, LocalFactors
from cotswold.training.networks import build_layers
from cotswold.training.updates import LocalSteps, ModuleUpdates, Update


def assert_same(found: Tensor, wanted: Tensor) -> None:
    """Equal but for rounding in float64."""
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def square(module: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = module(x)
    return y.square().sum()


def gradient_of(updates: ModuleUpdates, loss: Callable[[], Tensor]) -> Tensor:
    """Autograd's, as the flat vector."""
    gradient = torch.zeros_like(updates.flat.vector)
    updates.flat.collect(gradient)
    loss().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    updates.flat.collect(None)
    return gradient


def checked(updates: ModuleUpdates, loss: Callable[[], Tensor]) -> Update:
    """What a batch gives, whose gradient is autograd's."""
    update = updates.of_batch(loss)
    assert_same(updates.dense(update), gradient_of(updates, loss))
    return update


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize("bias", [True, False])
def test_factors_of_a_linear_layer_give_autograds_gradient(shape: tuple[int, ...], bias: bool) -> None:
    layer = nn.Linear(6, 4, bias=bias).double()
    updates = ModuleUpdates(nn.Sequential(layer), ways={"0": "factors"})
    x = torch.randn(*shape, 6, dtype=torch.float64)
    for _ in range(2):  # the first batch computes the gradient as well
        update = checked(updates, partial(square, updates.flat.module, x))
        assert update.factors["0"].examples == x[..., 0].numel()
        assert not update.gradient.any()


@pytest.mark.parametrize("batch", [(5,), ()])
@pytest.mark.parametrize(
    ("stride", "padding", "block"), [(1, 0, 1), (2, 1, (2, 3)), (1, "same", 1), ((2, 1), 2, (1, 2))]
)
def test_factors_of_a_local_layer_give_autograds_gradient_whole_and_by_rows_of_blocks(
    stride: int, padding: int, block: int, batch: tuple[int, ...]
) -> None:
    layer = LocallyConnected2d(2, 3, (8, 7), 3, stride, padding, block=block).double()
    updates = ModuleUpdates(nn.Sequential(layer), ways={"0": "factors"})
    x = torch.randn(*batch, 2, 8, 7, dtype=torch.float64)
    loss = partial(square, updates.flat.module, x)
    checked(updates, loss)
    factors = checked(updates, loss).factors["0"]
    whole = factors.gradients()
    down = layer.grid[0]
    parts = [factors.of_rows(rows).gradients() for rows in ((0, 1), (1, down - 1), (down - 1, down))]
    for found, each in zip(whole, zip(*parts, strict=True), strict=True):
        assert_same(torch.cat(each), found)
    assert factors.of_rows((0, 1)).numbers < factors.numbers


def test_rows_of_a_linear_layer_need_all_its_activations_and_their_own_errors() -> None:
    factors = LinearFactors.of(torch.randn(5, 4), torch.randn(5, 6))
    part = factors.of_rows((1, 3))
    assert part.numbers == 5 * (6 + 1) + 5 * 2
    for found, whole in zip(part.gradients(), factors.gradients(), strict=True):
        torch.testing.assert_close(found, whole[1:3])


def mixed() -> nn.Sequential:
    """Layers of every kind; the first that has factors reads data, and is changed in place."""
    return nn.Sequential(
        LocallyConnected2d(1, 2, (6, 6), 3),
        nn.ReLU(inplace=True),
        nn.Conv2d(2, 3, 3),
        nn.Flatten(),
        nn.Linear(12, 8),
        nn.ReLU(inplace=True),
        nn.Linear(8, 3),
    ).double()


def test_layers_without_factors_have_the_bits_of_an_ordinary_backward_pass() -> None:
    torch.manual_seed(0)
    updates = ModuleUpdates(mixed(), ways={"0": "factors", "4": "factors"})
    assert list(layers_of(updates.flat.module)) == ["0", "4", "6"]
    loss = partial(square, updates.flat.module, torch.randn(5, 1, 6, 6, dtype=torch.float64))
    for _ in range(2):
        update = checked(updates, loss)
        assert set(update.factors) == {"0", "4"}
        found, wanted = (updates.flat.named(each) for each in (update.gradient, gradient_of(updates, loss)))
        for name in ("2.weight", "2.bias", "6.weight", "6.bias"):
            assert torch.equal(found[name], wanted[name])
    assert all(each.requires_grad for each in updates.flat.module.parameters())
    assert not any(each._forward_hooks for each in updates.flat.module.modules())


def test_the_product_that_somebody_else_computes_is_not_computed_here() -> None:
    updates = ModuleUpdates(nn.Sequential(nn.Linear(30, 20)), ways={"0": "factors"})
    loss = partial(square, updates.flat.module, torch.randn(10, 30))
    flops = []
    for _ in range(2):
        with FlopCounterMode(display=False) as counter:
            updates.of_batch(loss)
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
    """A layer whose forward pass is computed anew in the backward pass."""

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
    updates = ModuleUpdates(module().double())
    for _ in range(3):
        update = checked(updates, partial(square, updates.flat.module, torch.randn(1, 6).double()))
        assert not update.factors


@pytest.mark.parametrize("module", UNFIT[:-1])
def test_a_wish_for_factors_that_cannot_be_fulfilled_is_refused(module: Callable[[], nn.Module]) -> None:
    updates = ModuleUpdates(module(), ways={"layer": "factors"})
    with pytest.raises(UserError, match="layer cannot be pushed as factors"):
        updates.of_batch(partial(square, updates.flat.module, torch.randn(1, 6)))


def test_names_that_are_no_such_layers_are_refused_with_those_that_are() -> None:
    with pytest.raises(UserError, match="'other' cannot be pushed as factors; layers that can: none"):
        ModuleUpdates(Tied(), ways={"other": "factors"})


def test_a_layer_that_is_applied_a_second_time_later_is_refused() -> None:
    module = Twice()
    module.times = 1
    updates = ModuleUpdates(module, ways={"layer": "factors"})
    loss = partial(square, module, torch.randn(1, 6))
    updates.of_batch(loss)
    module.times = 2
    with pytest.raises(UserError, match="layer was applied 2 times in one batch"):
        updates.of_batch(loss)
    module.times = 0
    assert not updates.of_batch(lambda: module(torch.randn(1, 6, requires_grad=True)).sum()).factors


def test_a_layer_that_a_batch_does_not_reach_is_judged_when_one_does() -> None:
    module = Twice()
    module.times = 0
    updates = ModuleUpdates(module)
    updates.of_batch(lambda: module(torch.randn(1, 6, requires_grad=True)).sum())
    assert not updates.costs
    module.times = 1
    assert updates.of_batch(partial(square, module, torch.randn(1, 6))).factors


@pytest.mark.parametrize(
    ("servers", "examples", "way"), [(1, 4, "factors"), (1, 8, "gradient"), (3, 4, "gradient")]
)
def test_the_way_of_fewer_numbers_is_chosen(servers: int, examples: int, way: str) -> None:
    # 12 rows of 10 inputs and a bias: 132 numbers; k (11 S + 12) of factors
    updates = ModuleUpdates(
        nn.Sequential(nn.Linear(10, 12)), [str(n) for n in range(servers)], shard_bytes=160
    )
    updates.of_batch(partial(square, updates.flat.module, torch.randn(examples, 10)))
    cost = updates.costs["0"]
    assert (cost.gradient, cost.factors, cost.way) == (132, examples * (11 * servers + 12), way)
    assert cost.bytes(4) == 4 * min(132, examples * (11 * servers + 12))


def test_what_is_wished_overrides_the_numbers() -> None:
    updates = ModuleUpdates(mixed(), ways={"4": "gradient", "6": "factors"})
    x = torch.randn(1, 1, 6, 6, dtype=torch.float64)
    updates.of_batch(partial(square, updates.flat.module, x))
    assert {name: cost.way for name, cost in updates.costs.items()} == {
        "0": "factors",
        "4": "gradient",
        "6": "factors",
    }


def test_the_papers_network_pushes_its_large_layers_as_factors() -> None:
    network = build_layers(load("adam-mnist"), 10, None)
    updates = ModuleUpdates(network)
    updates.of_batch(lambda: network(torch.randn(100, 1, 28, 28)).logsumexp(1).sum())
    found = [(cost.gradient, cost.factors, cost.way) for cost in updates.costs.values()]
    assert found == [
        (980 * 400 + 400, 100 * (981 + 400), "factors"),
        (400 * 400 + 400, 100 * (401 + 400), "factors"),
        (400 * 10 + 10, 100 * (401 + 10), "gradient"),
    ]


def test_shards_know_their_rows() -> None:
    updates = ModuleUpdates(nn.Sequential(nn.Linear(10, 12)), ["a", "b"], shard_bytes=160)
    rows = [(one.tensor, updates.rows_of(one)) for one in updates.shards]
    assert rows == [
        ("0.weight", (0, 4)),
        ("0.weight", (4, 8)),
        ("0.weight", (8, 12)),
        ("0.bias", (0, 12)),
    ]


def test_shards_are_pushed_what_they_need_of_a_batch() -> None:
    updates = ModuleUpdates(mixed(), ["a", "b"], shard_bytes=400, ways={"0": "factors", "4": "factors"})
    loss = partial(square, updates.flat.module, torch.randn(5, 1, 6, 6, dtype=torch.float64))
    update, whole = updates.of_batch(loss), gradient_of(updates, loss)
    ways = {}
    for shard in updates.shards:
        part = updates.of_shard(update, shard)
        ways[shard.tensor] = isinstance(part, Tensor)
        found = part if isinstance(part, Tensor) else part.gradients()[0].reshape(-1)
        assert_same(found, whole[shard.start : shard.stop])
    assert [name for name, is_dense in ways.items() if not is_dense] == ["0.weight", "4.weight"]
    assert len(updates.shards) > len(ways)  # some tensors have several


def test_a_delta_is_what_local_steps_add_up_to_and_is_taken_once() -> None:
    updates = ModuleUpdates(mixed())
    before = updates.flat.vector.clone()
    steps = LocalSteps(updates.flat)
    for number in range(3):
        x = torch.randn(2, 1, 6, 6, dtype=torch.float64)
        update = updates.of_batch(partial(square, updates.flat.module, x))
        steps.step(updates.dense(update), 1e-3 / (1 + number))
    assert steps.steps == 3
    taken = steps.take()
    assert_same(before + taken, updates.flat.vector)
    assert taken.abs().max() > 0
    assert steps.steps == 0 and not steps.take().any()


def test_inputs_that_are_changed_in_place_later_do_not_change_factors() -> None:
    layer = nn.Linear(3, 2)
    x = torch.ones(1, 3)
    with capturing({"layer": layer}, skip=True) as found:
        y = layer(x)
        x.zero_()
        y.sum().backward()
    factors = found["layer"].factors
    assert isinstance(factors, LinearFactors)
    assert torch.equal(factors.activations, torch.ones(1, 4))


def test_a_local_layer_is_captured_by_the_name_of_its_argument() -> None:
    layer = LocallyConnected2d(1, 1, (4, 4), 3)
    with capturing({"layer": layer}, skip=True) as found:
        layer(x=torch.ones(2, 1, 4, 4)).sum().backward()
    factors = found["layer"].factors
    assert isinstance(factors, LocalFactors) and factors.examples == 2
