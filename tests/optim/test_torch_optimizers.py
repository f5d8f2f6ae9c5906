"""LBFGS and ConjugateGradient, called like torch's optimisers."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cotswold.errors import DivergedError, UserError
from cotswold.optim import LBFGS, ApproximateWolfe, BunyipSearch, ConjugateGradient
from cotswold.optim.torch_optimizers import JointOptimizer

KINDS: list[Callable[..., JointOptimizer]] = [LBFGS, ConjugateGradient]


def network(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5, dtype=dtype), nn.Tanh(), nn.Linear(5, 1, dtype=dtype))


def closure_of(module: nn.Module, optimiser: torch.optim.Optimizer) -> Callable[[], Tensor]:
    first = next(module.parameters())
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(1)).to(first)
    y = x.sum(dim=1, keepdim=True).sin()

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = nn.functional.mse_loss(module(x), y)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return loss

    return closure


def flat(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("search", [None, ApproximateWolfe(), BunyipSearch()])
def test_a_loop_of_steps_trains_and_returns_the_loss_at_the_parameters(
    kind: Callable[..., JointOptimizer], search: Any
) -> None:
    module = network()
    optimiser = kind(module.parameters(), line_search=search)
    closure = closure_of(module, optimiser)
    start = closure().item()
    for _ in range(25):
        loss = optimiser.step(closure)
        assert loss.dtype == torch.float64 and float(loss) == pytest.approx(closure().item(), rel=1e-14)
    assert float(loss) < 0.15 * start
    assert optimiser.iteration is not None and optimiser.iteration.number == 25


def test_lbfgs_gets_lower_than_torchs_own_with_as_many_evaluations() -> None:
    ours, torchs = network(), network()
    one = LBFGS(ours.parameters())
    other = torch.optim.LBFGS(torchs.parameters(), max_iter=1000, max_eval=60, line_search_fn="strong_wolfe")
    used = 0
    while used < 60:
        loss = one.step(closure_of(ours, one))
        assert one.iteration is not None
        used += one.iteration.evaluations
    closure = closure_of(torchs, other)
    other.step(closure)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert float(loss) < 1.1 * closure().item()


def test_several_iterations_of_a_step_are_so_many_steps() -> None:
    one, many = network(), network()
    single, joint = LBFGS(one.parameters()), LBFGS(many.parameters(), max_iterations=6)
    for _ in range(6):
        single.step(closure_of(one, single))
    joint.step(closure_of(many, joint))
    assert torch.equal(flat(one), flat(many))


def groups(module: nn.Sequential, **second: object) -> list[dict[str, Any]]:
    return [{"params": module[0].parameters()}, {"params": module[2].parameters(), **second}]


def test_groups_make_one_step_and_each_has_its_weight_decay() -> None:
    """The second group's decay, as the optimiser's and as part of the loss, gives the same parameters."""
    one, other = network(), network()
    decayed, plain = LBFGS(groups(one, weight_decay=0.1)), LBFGS(other.parameters())
    inner = closure_of(other, plain)

    def closure() -> Tensor:
        loss = inner()
        square = sum((p * p).sum() for p in other[2].parameters()) * 0.05
        square.backward()  # type: ignore[union-attr]  # there are parameters
        return loss + square

    for _ in range(10):
        loss = decayed.step(closure_of(one, decayed))
        expected = plain.step(closure)
    assert torch.allclose(flat(one), flat(other), rtol=1e-6, atol=1e-8)
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"lr": 0.1}, "sets 'lr', which LBFGS does not have"),
        ({"history_size": 5}, "sets 'history_size', but all groups make one step together"),
        ({"max_iterations": 3}, "all groups make one step together"),
        ({"weight_decay": -1.0}, "weight_decay must be 0 or more, got -1.0"),
    ],
)
def test_what_a_joint_step_cannot_honour_is_refused(setting: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        LBFGS(groups(network(), **setting))


def test_a_group_may_repeat_what_all_have() -> None:
    assert LBFGS(groups(network(), history_size=10)).param_groups[1]["history_size"] == 10


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_and_loaded_optimiser_goes_on_with_the_same_bits(kind: Callable[..., JointOptimizer]) -> None:
    whole, part = network(), network()
    one, other = kind(whole.parameters()), kind(part.parameters())
    for _ in range(5):
        one.step(closure_of(whole, one))
        other.step(closure_of(part, other))
    file = io.BytesIO()
    torch.save({"module": part.state_dict(), "optimiser": other.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)  # plain values and tensors alone
    fresh = network(seed=5)
    third = kind(fresh.parameters())
    fresh.load_state_dict(saved["module"])
    third.load_state_dict(saved["optimiser"])
    for _ in range(5):
        one.step(closure_of(whole, one))
        third.step(closure_of(fresh, third))
    assert torch.equal(flat(whole), flat(fresh)) and one.iteration == third.iteration


def test_the_state_of_another_optimiser_is_refused() -> None:
    module = network()
    with pytest.raises(UserError, match="not the state of a LBFGS"):
        LBFGS(module.parameters()).load_state_dict(torch.optim.SGD(module.parameters(), 0.1).state_dict())
    with pytest.raises(ValueError, match="method 'cg'; expected 'lbfgs'"):
        LBFGS(module.parameters()).load_state_dict(stepped(module).state_dict())


def stepped(module: nn.Module) -> ConjugateGradient:
    optimiser = ConjugateGradient(module.parameters())
    optimiser.step(closure_of(module, optimiser))
    return optimiser


def test_parameters_that_somebody_else_moved_are_where_the_next_step_begins() -> None:
    module = network()
    optimiser = LBFGS(module.parameters())
    for _ in range(4):
        optimiser.step(closure_of(module, optimiser))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.5)
    fresh = network()
    fresh.load_state_dict(module.state_dict())
    other = LBFGS(fresh.parameters())
    optimiser.step(closure_of(module, optimiser))
    other.step(closure_of(fresh, other))
    assert torch.equal(flat(module), flat(fresh))


@pytest.mark.parametrize("trouble", ["nan", "error"])
def test_trouble_in_a_closure_leaves_the_parameters_as_they_were(trouble: str) -> None:
    module = network()
    optimiser = LBFGS(module.parameters())
    good = closure_of(module, optimiser)
    for _ in range(3):
        optimiser.step(good)
    before = flat(module)

    def bad() -> Tensor:
        if trouble == "error":
            raise RuntimeError("out of memory")
        return good() * float("nan")

    if trouble == "error":
        with pytest.raises(RuntimeError, match="out of memory"):
            optimiser.step(bad)
    else:
        with pytest.warns(
            UserWarning, match="the parameters do not change: no step decreases the value enough"
        ):
            optimiser.step(bad)
    assert torch.equal(flat(module), before)
    assert float(optimiser.step(good)) < good().item() * 1.0001


def test_nan_at_the_start_is_an_error() -> None:
    module = network()
    optimiser = LBFGS(module.parameters())
    closure = closure_of(module, optimiser)
    with pytest.raises(DivergedError, match="at the current point"):
        optimiser.step(lambda: closure() * float("nan"))


def parameters(*tensors: Tensor) -> list[nn.Parameter]:
    return [nn.Parameter(tensor) for tensor in tensors]


def test_parameters_of_any_memory_layout_and_unused_ones_are_taken() -> None:
    turned, unused = parameters(torch.ones(3, 4, dtype=torch.float64).T, torch.ones(2, dtype=torch.float64))
    target = torch.arange(12, dtype=torch.float64).view(4, 3)
    optimiser = LBFGS([turned, unused])

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = ((turned - target) ** 2).sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return loss

    for _ in range(3):
        optimiser.step(closure)
    assert torch.allclose(turned, target) and unused.tolist() == [1.0, 1.0]
    assert turned.stride() == (1, 4)


@pytest.mark.parametrize(
    ("given", "closure", "words"),
    [
        (parameters(torch.ones(2)), None, "needs a closure"),
        (parameters(torch.ones(2)), lambda: torch.ones(()), "left no gradients"),
        (
            parameters(torch.ones(2)),
            lambda: torch.ones(2),
            "must return the loss as one number, got shape \\(2,\\)",
        ),
        (parameters(torch.ones(2)), lambda: None, "must return the loss, got NoneType"),
        (parameters(torch.ones(2).bfloat16()), lambda: torch.ones(()), "float32 or float64"),
    ],
)
def test_what_cannot_be_stepped_is_named(given: Iterable[nn.Parameter], closure: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        LBFGS(given).step(closure)


@pytest.mark.parametrize("bad", [{"history_size": 0}, {"max_iterations": 0}, {"cycle_iterations": 0}])
def test_settings_that_cannot_work_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(UserError, match="got 0"):
        LBFGS(network().parameters(), **bad)  # type: ignore[arg-type]  # each is an int


def test_an_unknown_beta_is_refused_when_the_optimiser_is_made() -> None:
    with pytest.raises(UserError, match=r"beta must be one of 'polak-ribiere', .*; got 'fr'"):
        ConjugateGradient(network().parameters(), beta="fr")  # type: ignore[arg-type]  # that is the mistake


def test_a_step_that_cannot_gain_warns_instead_of_saying_nothing() -> None:
    (w,) = parameters(torch.zeros(2))
    optimiser = LBFGS([w])

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = (w * w).sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return loss

    with pytest.warns(UserWarning, match="the gradient is zero"):
        optimiser.step(closure)


def test_a_group_that_is_added_later_joins_the_vector() -> None:
    module = network()
    first, last = module[0], module[2]
    assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
    optimiser = LBFGS(first.parameters())
    closure = closure_of(module, optimiser)
    before = last.weight.detach().clone()
    optimiser.step(closure)
    assert torch.equal(last.weight, before)
    optimiser.add_param_group({"params": list(last.parameters())})
    optimiser.step(closure)
    assert not torch.equal(last.weight, before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "how", ["frozen", "frozen with an old gradient", "unused", "frozen after some steps"]
)
def test_weight_decay_leaves_parameters_that_do_not_learn(
    kind: Callable[..., JointOptimizer], how: str
) -> None:
    used, other = (nn.Parameter(torch.full((2,), 3.0)) for _ in range(2))
    optimiser = kind([used, other], weight_decay=0.1)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = (used - 1).square().sum()
        if how == "frozen after some steps":
            loss = loss + ((other - used) * torch.tensor([1.0, 3.0])).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return loss

    if how == "frozen after some steps":
        for _ in range(3):
            optimiser.step(closure)
    if how.startswith("frozen"):
        other.requires_grad_(False)
    if how == "frozen with an old gradient":
        other.grad = torch.ones(2)
        optimiser.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]  # keeps it
    before, start = other.detach().clone(), used.detach().clone()
    optimiser.step(closure)
    assert torch.equal(other, before) and not torch.equal(used, start)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unit", [1e-15, 1e-12, 1e12])
def test_the_unit_of_the_loss_and_of_the_parameters_changes_no_iteration(
    kind: Callable[..., JointOptimizer], unit: float
) -> None:
    def iterations(loss_unit: float, parameter_unit: float) -> int:
        goal = torch.tensor([3.0, -2.0], dtype=torch.float64) * parameter_unit
        x = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        optimiser = kind([x])

        def closure() -> Tensor:
            optimiser.zero_grad()
            loss = loss_unit * ((x - goal).square() * torch.tensor([1.0, 4.0])).sum()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            return loss

        for number in range(40):
            optimiser.step(closure)
            if torch.allclose(x, goal, rtol=1e-6):
                return number
        return 40

    assert iterations(unit, 1.0) == iterations(1.0, 1.0) < 10
    assert iterations(1e-12, 1e6) < 20


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [0, 4])
def test_a_deep_copy_with_its_network_goes_on_with_the_same_bits(
    kind: Callable[..., JointOptimizer], steps: int
) -> None:
    module = network()
    optimiser = kind(module.parameters(), line_search=ApproximateWolfe())
    for _ in range(steps):
        optimiser.step(closure_of(module, optimiser))
    twin, copied = copy.deepcopy((module, optimiser))
    for _ in range(3):
        optimiser.step(closure_of(module, optimiser))
        copied.step(closure_of(twin, copied))
    assert torch.equal(flat(module), flat(twin))
    assert copied.iteration == optimiser.iteration


@pytest.mark.parametrize("kind", KINDS)
def test_a_scheduler_of_learning_rates_is_refused_in_words(kind: Callable[..., JointOptimizer]) -> None:
    optimiser = kind(network().parameters())
    optimiser.load_state_dict(optimiser.state_dict())
    with pytest.raises(UserError, match="a line search finds every step"):
        torch.optim.lr_scheduler.StepLR(optimiser, 1)
